"""Texts per second of `encode` against sentence-transformers, on one GPU, tokenization included.

    python benchmarks/encode_throughput.py TEXTS TOKENIZER --output encode-vs-sentence-transformers.json

TEXTS: a text file or table as `neobert-launch encode` reads it; its words are cut to texts of drawn lengths.
TOKENIZER: a tokenizer folder. Both models have the shape of NeoBERT-250M and random weights. The arms run in
turns, on the same texts, in bf16, with mean pooling:

  packed              neobert.encoding.Encoder
  st-padded           sentence-transformers, padded batches in the order of the texts
  st-sorted           sentence-transformers, padded batches of texts sorted by length (its own order)
  st-unpadded         sentence-transformers, flattened inputs, where it offers them for this model
  modernbert-sorted   ModernBERT of transformers in the same shape through sentence-transformers, padded, SDPA
  modernbert-flash    the same, flattened inputs, where it offers them

Flattened inputs need a FlashAttention that transformers knows: of those installed, the first of FLASH.
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
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.modernbert import build as build_modernbert
from transformers import AutoTokenizer

from benchmarks.measurement import write_measurement
from neobert.config.schema import ModelConfig, TokenizerConfig
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.encoding import Encoder
from neobert.encoding.texts import open_texts
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.plan.vocabulary import round_up

log = logging.getLogger("encode_throughput")

Arm = Callable[[Sequence[str]], np.ndarray]
TARGETS = {"st-padded": 2.0, "st-sorted": 1.3, "st-unpadded": 1.1, "modernbert": 1.3}
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
SAME_KERNELS = ("packed", "st-padded", "st-sorted")
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


def of_library(model: Any, batch_size: int, *, in_order: bool = False) -> Arm:
    """Return an arm.

    `in_order` calls the library once per batch, because a call sorts its texts by length.
    """

    def encode(texts: Sequence[str]) -> np.ndarray:
        if not in_order:
            return model.encode(list(texts), batch_size=batch_size, convert_to_numpy=True)
        batches = (texts[start : start + batch_size] for start in range(0, len(texts), batch_size))
        return np.concatenate([model.encode(list(batch), batch_size=batch_size) for batch in batches])

    return encode


def arms_of(
    folders: dict[str, Path], device: str, batch_size: int
) -> tuple[dict[str, Arm], dict[str, str], str]:
    """Return the arms that run here, why others do not, and the kernels of our own."""
    encoder = Encoder.load(folders["neobert"], device=device)
    arms: dict[str, Arm] = {"packed": encoder.encode}
    missing: dict[str, str] = {}
    padded = sentence_transformer(folders["neobert"], device, attn_implementation="sdpa")
    padded[0].unpad_inputs = False
    arms["st-padded"] = of_library(padded, batch_size, in_order=True)
    arms["st-sorted"] = of_library(padded, batch_size)
    peer = sentence_transformer(folders["modernbert"], device, attn_implementation="sdpa")
    arms["modernbert-sorted"] = of_library(peer, batch_size)
    for name, folder in (("st-unpadded", "neobert"), ("modernbert-flash", "modernbert")):
        for implementation in FLASH:
            try:
                arms[name] = of_library(flattened(folders[folder], device, implementation), batch_size)
                break
            except Exception as error:  # whatever a library lacks, the other arms are measured
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                missing[f"{name}, {implementation}"] = reason
    return arms, missing, encoder.model.kernels


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
    firsts = {False: "packed", True: "modernbert-sorted"}
    return {
        name: float(cosines(found[firsts[name.startswith("modernbert")]], each).min())
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
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
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
    arms, missing, kernels = arms_of(folders, device, options.batch_size)
    agreement = compare(arms, texts[:512])
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for round_number in range(options.rounds + 1):
        for name, arm in arms.items():
            seconds[name].append(timed(arm, texts))
        if not round_number:  # a round to compile kernels and fill caches
            seconds = {name: [] for name in arms}
            continue
        report(options.output, seconds, missing, kernels, agreement, lengths, options, round_number)
    shutil.rmtree(work)
    # Other kernels of other libraries are theirs to answer for.
    worst = min(value for name, value in agreement.items() if name in SAME_KERNELS)
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
    missing: dict[str, str],
    kernels: str,
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
    peers = [name for name in ratios if name.startswith("modernbert")]
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
        "not_run": missing,
        "modernbert_best": round(min(ratios[name] for name in peers), 3),
        "targets": TARGETS,
        "kernels": kernels,
        "least_cosine": agreement,
        "texts": len(lengths),
        "tokens": int(lengths.sum()),
        "tokens_per_text_at_10_50_90_percent": np.percentile(lengths, [10, 50, 90]).tolist(),
        "batch_size": options.batch_size,
        "max_length": options.positions,
        "rounds": round_number,
    }
    done = round_number == options.rounds
    write_measurement(
        output,
        round(ratios["st-padded"], 3),
        "times sentence-transformers, padded",
        TARGETS["st-padded"],
        detail,
        is_complete=done,
    )
    log.info(
        "round %d: %s", round_number, ", ".join(f"{name} {each:.2f} s" for name, each in medians.items())
    )


if __name__ == "__main__":
    main()
