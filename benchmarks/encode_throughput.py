"""Texts per second of `encode` against sentence-transformers, on one GPU, tokenization included.

    python benchmarks/encode_throughput.py TEXTS TOKENIZER --output encode-vs-sentence-transformers.json

TEXTS: a text file or table as `neobert-launch encode` reads it; its words are cut to texts of drawn lengths.
TOKENIZER: a tokenizer folder. Both models have the shape of NeoBERT-250M and random weights. The arms run in
turns, on the same texts, in bf16, with mean pooling:

  packed              neobert.encoding.Encoder
  st-sorted           sentence-transformers, padded batches of texts sorted by length, as it sorts them itself
  st-unpadded         sentence-transformers, flattened inputs, where it offers them for this model
  modernbert-sorted   ModernBERT of transformers in the same shape through sentence-transformers, padded, SDPA
  modernbert-flash    the same, flattened inputs, where it offers them

Each library arm has the fastest of `--batch-sizes` on a part of the texts. A part of the texts is profiled:
an arm of a library with dense attention is left out. Flattened inputs need a FlashAttention that
transformers knows: of those installed, the first of FLASH.
`--tiny` runs the same on a CPU in a minute.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measurement import write_measurement
from peers.kernels import DenseAttentionError, kernels_of, require_fused_attention, summary
from peers.modernbert import build as build_modernbert
from transformers import AutoTokenizer

from neobert.config.schema import ModelConfig, TokenizerConfig
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.encoding import Encoder
from neobert.encoding.texts import open_texts
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.plan.vocabulary import round_up

log = logging.getLogger("encode_throughput")

Arm = Callable[[Sequence[str]], np.ndarray]
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
SAME_KERNELS = ("packed", "st-sorted")
PART = 2_048
"""Texts by which batch sizes are chosen, and that are profiled."""
AGREEMENT = 0.99
"""Least cosine between embeddings of two libraries in bf16."""


def drawn_texts(source: Path, tokenizer: Any, count: int, most_tokens: int) -> list[str]:
    """Cut texts to lengths from a log-normal distribution: median 64 tokens, a tenth beyond 240."""
    draw = random.Random(0)
    words: list[str] = []
    for text in islice(iter(open_texts(source, None, "train")), 200_000):
        words += text.split()
        if len(words) > 300 * count:
            break
    tokens_per_word = len(tokenizer(" ".join(words[:20_000]))["input_ids"]) / min(20_000, len(words))
    texts, place = [], 0
    for _ in range(count):
        tokens = min(most_tokens - 2, max(4, round(draw.lognormvariate(np.log(64), 1.0))))
        length = max(1, int(tokens / tokens_per_word))
        place = place + length if place + 2 * length < len(words) else 0
        texts.append(" ".join(words[place : place + length]))
    return texts


def write_folders(work: Path, tokenizer_folder: Path, shape: ModelConfig, positions: int) -> dict[str, Path]:
    """Write the two models in the layout of sentence-transformers."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    vocab_size = round_up(len(tokenizer), 128)
    torch.manual_seed(0)
    own, peer = work / "neobert", work / "modernbert"
    config = NeoBERTConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        pooling="avg",
    )
    write_hf_folder(NeoBERTLMHead(config), read_tokenizer_files(tokenizer_folder), own)
    build_modernbert(shape, vocab_size, tokenizer.pad_token_id).save_pretrained(peer)
    tokenizer.save_pretrained(peer)
    for folder in (own, peer):
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": shape.hidden_size, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        kinds = ("Transformer", ""), ("Pooling", "1_Pooling")
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": positions}))
    return {"neobert": own, "modernbert": peer}


def sentence_transformer(folder: Path, device: str, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = SentenceTransformer(
        str(folder), trust_remote_code=True, device=device, model_kwargs={"dtype": dtype, **options}
    )
    return model.eval()


def of_library(model: Any, batch_size: int) -> Arm:
    return lambda texts: model.encode(list(texts), batch_size=batch_size, convert_to_numpy=True)


def arms_of(
    folders: dict[str, Path], device: str, part: Sequence[str], batch_sizes: Sequence[int]
) -> tuple[dict[str, Arm], dict[str, Any]]:
    """Return the arms that run here, and their settings: batch sizes, why others do not run, our kernels."""
    encoder = Encoder.load(folders["neobert"], device=device)
    models: dict[str, Any] = {}
    missing: dict[str, str] = {}
    models["st-sorted"] = sentence_transformer(folders["neobert"], device, attn_implementation="sdpa")
    models["st-sorted"][0].unpad_inputs = False
    models["modernbert-sorted"] = sentence_transformer(
        folders["modernbert"], device, attn_implementation="sdpa"
    )
    for name, folder in (("st-unpadded", "neobert"), ("modernbert-flash", "modernbert")):
        for implementation in FLASH:
            try:
                models[name] = flattened(folders[folder], device, implementation)
                break
            except Exception as error:  # whatever a library lacks, the other arms are measured
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                missing[f"{name}, {implementation}"] = reason
    sizes = {name: fastest_batch(model, part, batch_sizes) for name, model in models.items()}
    arms: dict[str, Arm] = {"packed": encoder.encode}
    arms |= {name: of_library(model, sizes[name]) for name, model in models.items()}
    return arms, {"batch_sizes": sizes, "not_run": missing, "kernels": encoder.model.kernels}


def fastest_batch(model: Any, part: Sequence[str], batch_sizes: Sequence[int]) -> int:
    """Return the batch size with which a part of the texts takes least, the second time."""
    seconds = {}
    for size in batch_sizes:
        arm = of_library(model, size)
        arm(part)
        seconds[size] = timed(arm, part)
    return min(seconds, key=lambda size: seconds[size])


def profiled(
    arms: dict[str, Arm], part: Sequence[str], num_layers: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the kernels of each arm, and the libraries' arms with dense attention, which are left out."""
    found, dense = {}, {}
    for name, arm in arms.items():
        kernels = kernels_of(partial(arm, part))
        found[name] = summary(kernels)
        try:
            if name != "packed":
                require_fused_attention(kernels, num_layers, passes=1)
        except DenseAttentionError as error:
            dense[name] = str(error)
    return found, dense


def flattened(folder: Path, device: str, implementation: str) -> Any:
    """Load a model that takes flattened inputs. Raises whatever its libraries raise where it does not."""
    model = sentence_transformer(folder, device, attn_implementation=implementation)
    if not model[0].can_flatten_inputs:
        raise RuntimeError("can_flatten_inputs is False")
    model.encode(["one text", "another one"])
    return model


def compare(arms: dict[str, Arm], texts: Sequence[str]) -> dict[str, float]:
    """Return the least cosine of each arm with the first of its model: for ours, the packed embeddings."""
    found = {name: arm(texts) for name, arm in arms.items()}
    modernberts = [name for name in found if name.startswith("modernbert")]
    return {
        name: float(cosines(found[modernberts[0] if name in modernberts else "packed"], each).min())
        for name, each in found.items()
    }


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (np.asarray(each, np.float64) for each in (a, b))
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32_768)
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = ModelConfig(max_position_embeddings=options.positions)
    if options.tiny:
        shape = ModelConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=1, intermediate_size=96,
            max_position_embeddings=options.positions,
        )  # fmt: skip
    work = Path(tempfile.mkdtemp())
    load_tokenizer(TokenizerConfig(path=str(options.tokenizer))).save(work / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")
    texts = drawn_texts(options.texts, tokenizer, options.count, options.positions)
    lengths = np.array(
        [len(each) for each in tokenizer(texts, truncation=True, max_length=options.positions)["input_ids"]]
    )
    folders = write_folders(work, work / "tokenizer", shape, options.positions)
    arms, settings = arms_of(folders, device, texts[:PART], options.batch_sizes)
    kernels, dense = profiled(arms, texts[:PART], shape.num_hidden_layers)
    arms = {name: arm for name, arm in arms.items() if name not in dense}
    settings["not_run"] |= dense
    settings |= {"own_kernels": kernels.pop("packed"), "peer_kernels": kernels}
    agreement = compare(arms, texts[:512])
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for round_number in range(options.rounds + 1):
        for name, arm in arms.items():
            seconds[name].append(timed(arm, texts))
        if not round_number:  # a round to compile kernels and fill caches
            seconds = {name: [] for name in arms}
            continue
        report(options.output, seconds, settings, agreement, lengths, options, round_number)
    shutil.rmtree(work)
    # Other kernels of other libraries are theirs to answer for.
    worst = min((value for name, value in agreement.items() if name in SAME_KERNELS), default=1.0)
    if device == "cuda" and worst < AGREEMENT:
        raise SystemExit(f"embeddings differ: least cosine {worst:.4f}")


def timed(arm: Arm, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    arm(texts)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started_s


def report(
    output: Path,
    seconds: dict[str, list[float]],
    settings: dict[str, Any],
    agreement: dict[str, float],
    lengths: np.ndarray,
    options: argparse.Namespace,
    round_number: int,
) -> None:
    """Write medians over the rounds so far, and print them."""
    medians = {name: median(values) for name, values in seconds.items()}
    ratios = {
        name: median(b / a for a, b in zip(seconds["packed"], values, strict=True))
        for name, values in seconds.items()
    }
    detail = {
        "arms": {
            name: {
                "seconds": values,
                "texts_per_s": round(len(lengths) / medians[name], 1),
                "tokens_per_s": round(int(lengths.sum()) / medians[name]),
                "times_slower_than_packed": round(ratios[name], 3),
            }
            for name, values in seconds.items()
        },
        **settings,
        "least_cosine": agreement,
        "texts": len(lengths),
        "tokens": int(lengths.sum()),
        "tokens_per_text_at_10_50_90_percent": np.percentile(lengths, [10, 50, 90]).tolist(),
        "max_length": options.positions,
        "rounds": round_number,
    }
    done = round_number == options.rounds
    write_measurement(
        output,
        round(min(ratio for name, ratio in ratios.items() if name != "packed"), 3),
        "times the fastest arm of sentence-transformers",
        None,
        detail,
        is_complete=done,
    )
    log.info(
        "round %d: %s", round_number, ", ".join(f"{name} {each:.2f} s" for name, each in medians.items())
    )


if __name__ == "__main__":
    main()
