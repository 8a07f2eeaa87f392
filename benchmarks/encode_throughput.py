"""Texts per second of `encode` against sentence-transformers, on one GPU, tokenization included.

    python benchmarks/encode_throughput.py TEXTS TOKENIZER --output encode-vs-sentence-transformers.json

TEXTS: a text file or table as `neobert-launch encode` reads it, or a folder of them; its words are cut to
texts of drawn lengths. TOKENIZER: a tokenizer folder. One model of NeoBERT-250M's shape with random weights,
in bf16, with mean pooling. The arms run in turns on the same texts:

  packed                        neobert.encoding.Encoder
  st-sorted                     sentence-transformers, padded batches of texts, which it sorts by length
  st-unpadded, IMPLEMENTATION   the same on flattened inputs: transformers' FlashAttention 2, 3 or 4 if it
                                loads, torch's varlen kernel (FlashAttention 2), FlashAttention 4 as operator
  ..., compiled                 the forward of the model under torch.compile(dynamic=True)

Every peer has the fastest of `--batch-sizes` on a part of the texts; of the padded and of the unpadded
forms the fastest one that is not compiled, and the compiled unpadded one, take part in the rounds: compiled
padded rows are slower (0.79 against 0.47 s for 2,048 texts on an H100). A part of the texts is profiled: an
arm with dense attention, or a compiled one without a graph, is left out.
`--tiny` runs the same on a CPU in minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
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
import torch._dynamo
from measurement import write_measurement
from peers.attention import flatten_inputs
from peers.kernels import record_kernels, require_fused_attention, summarize_kernels
from transformers import AutoTokenizer

from neobert.config.schema import ModelConfig, TokenizerConfig
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.encoding import Encoder
from neobert.encoding.texts import open_texts
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead

log = logging.getLogger("encode_throughput")

Arm = Callable[[Sequence[str]], np.ndarray]
PACKED, SORTED, UNPADDED, COMPILED = "packed", "st-sorted", "st-unpadded", "compiled"
KNOWN = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
"""FlashAttention of transformers: sentence-transformers flattens inputs for them by itself."""
OPERATORS = ("bench_varlen", "bench_fa4")
"""Attention functions that torch.compile traces; transformers' own FlashAttention 4 breaks its graph."""
PART = 2_048
"""Number of texts with which batch sizes are chosen and kernels are profiled."""
AGREEMENT = 0.99
"""Minimum cosine between embeddings of the packed and the padded form in bf16."""


def sample_texts(source: Path, tokenizer: Any, count: int, most_tokens: int) -> list[str]:
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


def write_model(folder: Path, tokenizer_folder: Path, shape: ModelConfig, positions: int) -> None:
    """Write random weights in the layout of sentence-transformers."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(0)
    config = NeoBERTConfig(
        vocab_size=-(-len(tokenizer) // 128) * 128,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        pooling="avg",
    )
    write_hf_folder(NeoBERTLMHead(config), read_tokenizer_files(tokenizer_folder), folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": shape.hidden_size, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling")
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": positions}))


def load_peer(folder: Path, device: str, attention: str, *, is_compiled: bool) -> Any:
    """Load the peer. Raises an error of its libraries if the attention function cannot be loaded."""
    from sentence_transformers import SentenceTransformer

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    options = {"dtype": dtype, "attn_implementation": attention}
    model = SentenceTransformer(
        str(folder), trust_remote_code=True, device=device, model_kwargs=options
    ).eval()
    module = model[0]
    if attention == "sdpa":
        module.unpad_inputs = False
    elif not module.can_flatten_inputs:
        if attention in KNOWN:
            raise RuntimeError("can_flatten_inputs is False")
        module._is_flash_attention_requested = lambda: True
        flatten_inputs(module)
    if is_compiled:  # it calls `forward`, which nn.Module.compile does not replace
        module.model.forward = torch.compile(module.model.forward, dynamic=True)
    return model


def library_arm(model: Any, batch_size: int) -> Arm:
    return lambda texts: model.encode(
        list(texts), batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False
    )


def num_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class Peers:
    """Forms of the peer that run here, each with the batch size that is fastest on a part of the texts."""

    def __init__(
        self, folder: Path, device: str, part: Sequence[str], sizes: Sequence[int], layers: int
    ) -> None:
        self.folder, self.device, self.part, self.sizes, self.layers = folder, device, part, sizes, layers
        self.arms: dict[str, Arm] = {}
        self.chosen: dict[str, int] = {}
        self.part_seconds: dict[str, dict[int, float]] = {}
        self.kernels: dict[str, Any] = {}
        self.graphs: dict[str, int] = {}
        self.not_run: dict[str, str] = {}

    def add(self, form: str, attention: str, *, is_compiled: bool) -> None:
        words = [form, *([attention] if form == UNPADDED else []), *([COMPILED] if is_compiled else [])]
        name = ", ".join(words)
        started_s, before = time.perf_counter(), num_graphs()
        try:
            model = load_peer(self.folder, self.device, attention, is_compiled=is_compiled)
            model.encode(["one text", "another one, which is longer", "a third"], show_progress_bar=False)
            size, seconds = fastest_batch(model, self.part, self.sizes)
            made = num_graphs() - before
            if is_compiled and not made:
                raise RuntimeError("nothing was compiled")
            arm = library_arm(model, size)
            kernels = record_kernels(partial(arm, self.part))
            self.kernels[name] = summarize_kernels(kernels)
            if self.device == "cuda":
                # Batches of a part: at least two, so that a layer has as many launches as in training.
                require_fused_attention(kernels, self.layers)
        except Exception as error:  # whatever a library lacks, the other arms are measured
            self.not_run[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            log.info("%s: not run, %s", name, self.not_run[name])
            return
        self.arms[name], self.chosen[name], self.part_seconds[name] = arm, size, seconds
        if is_compiled:
            self.graphs[name] = made
        kinds = {kind: each["share"] for kind, each in self.kernels[name]["attention"].items()}
        log.info(
            "%s: ready after %.0f s, batches of %d, %.2f s for %d texts, attention %s",
            name, time.perf_counter() - started_s, size, seconds[size], len(self.part), kinds,
        )  # fmt: skip

    def best(self) -> dict[str, Arm]:
        """Return the fastest form of each kind on the part of the texts."""
        kept = {}
        for form in (SORTED, UNPADDED):
            for is_compiled in (False, True):
                names = [
                    name
                    for name in self.arms
                    if name.startswith(form) and name.endswith(COMPILED) is is_compiled
                ]
                if names:
                    name = min(names, key=lambda each: min(self.part_seconds[each].values()))
                    kept[name] = self.arms[name]
        return kept


def fastest_batch(model: Any, part: Sequence[str], sizes: Sequence[int]) -> tuple[int, dict[int, float]]:
    """Return the fastest batch size and the seconds of each, measured after one warm-up pass."""
    seconds = {}
    for size in sizes:
        arm = library_arm(model, size)
        arm(part)
        seconds[size] = round(measure_seconds(arm, part), 4)
    return min(seconds, key=lambda size: seconds[size]), seconds


def measure_seconds(arm: Arm, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    arm(texts)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started_s


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
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--until-s", type=float, default=1e9, help="seconds after which no round is started")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    begun_s = time.perf_counter()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 96}
    shape = ModelConfig(max_position_embeddings=options.positions, **(sizes if options.tiny else {}))
    work = Path(tempfile.mkdtemp())
    load_tokenizer(TokenizerConfig(path=str(options.tokenizer))).save(work / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")
    texts = sample_texts(options.texts, tokenizer, options.count, options.positions)
    ids = tokenizer(texts, truncation=True, max_length=options.positions)["input_ids"]
    lengths = np.array([len(each) for each in ids])
    folder, part = work / "neobert", texts[:PART]
    write_model(folder, work / "tokenizer", shape, options.positions)
    encoder = Encoder.load(folder, device=device)
    encoder.encode(part)
    settings: dict[str, Any] = {
        "kernels": encoder.model.kernels,
        "own_kernels": summarize_kernels(record_kernels(lambda: encoder.encode(part))),
    }
    log.info("ours is ready after %.0f s: %s", time.perf_counter() - begun_s, encoder.model.kernels)
    peers = Peers(folder, device, part, options.batch_sizes, shape.num_hidden_layers)
    peers.add(SORTED, "sdpa", is_compiled=False)
    for attention in (*KNOWN, *OPERATORS):
        peers.add(UNPADDED, attention, is_compiled=False)
    peers.add(UNPADDED, fastest_operator(peers), is_compiled=True)
    settings |= {
        "batch_sizes": peers.chosen,
        "seconds_of_a_part": {"texts": len(part), **peers.part_seconds},
        "graphs": peers.graphs,
        "not_run": peers.not_run,
        "peer_kernels": peers.kernels,
    }
    arms: dict[str, Arm] = {PACKED: encoder.encode, **peers.best()}
    found = {name: arm(texts[:512]) for name, arm in arms.items()}
    agreement = {name: float(cosines(found[PACKED], each).min()) for name, each in found.items()}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for round_number in range(options.rounds + 1):
        if round_number > 1 and time.perf_counter() - begun_s > options.until_s:
            log.info("no time for round %d", round_number)
            break
        for name, arm in arms.items():
            seconds[name].append(measure_seconds(arm, texts))
        if not round_number:  # a round to compile kernels and fill caches
            first = {name: round(values[0], 2) for name, values in seconds.items()}
            log.info("warm-up after %.0f s: %s", time.perf_counter() - begun_s, first)
            seconds = {name: [] for name in arms}
            continue
        report(options, seconds, settings, agreement, lengths, round_number)
    if device == "cuda" and agreement.get(SORTED, 1.0) < AGREEMENT:
        raise SystemExit(f"embeddings differ: minimum cosine {agreement[SORTED]:.4f} (at least {AGREEMENT})")


def fastest_operator(peers: Peers) -> str:
    """Return the fastest attention of `OPERATORS` in unpadded form, or the first one if none ran."""
    ran = {name: peers.part_seconds.get(f"{UNPADDED}, {name}") for name in OPERATORS}
    timed_ones = {name: min(each.values()) for name, each in ran.items() if each}
    return min(timed_ones, key=lambda name: timed_ones[name]) if timed_ones else OPERATORS[0]


def report(
    options: argparse.Namespace,
    seconds: dict[str, list[float]],
    settings: dict[str, Any],
    agreement: dict[str, float],
    lengths: np.ndarray,
    round_number: int,
) -> None:
    """Write medians over the rounds so far, and print them."""
    medians = {name: median(values) for name, values in seconds.items()}
    ratios = {
        name: median(b / a for a, b in zip(seconds[PACKED], values, strict=True))
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
    rival = min((name for name in ratios if name != PACKED), key=lambda name: ratios[name])
    write_measurement(
        options.output,
        round(ratios[rival], 3),
        "times the fastest arm of sentence-transformers",
        None,
        {"fastest_peer": rival, **detail},
        is_complete=round_number == options.rounds,
    )
    for name, each in detail["arms"].items():
        slower, rate = each["times_slower_than_packed"], each["texts_per_s"]
        log.info("round %d: %-44s %9.1f texts/s, %.2f times slower", round_number, name, rate, slower)


if __name__ == "__main__":
    main()
