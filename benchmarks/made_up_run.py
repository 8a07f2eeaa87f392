"""Runs of the real trainer on synthetic documents: NeoBERT-250M, T = 32,768 tokens per step.

Lengths come from a lognormal (median 150 tokens, sigma 0.86, cut at 1,024).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from neobert.config import from_dict
from neobert.config.schema import RunConfig

NUM_WORDS = 30_500
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "bcdfghjklmnpqrstvwxz"
NUM_MARKERS = 2
PACKED_LENGTH = 1024
DOCUMENTS = "documents.jsonl"


@dataclass(frozen=True)
class RunSize:
    """Size of a run. `is_full`: compiled, in bf16; otherwise a dry run for any machine."""

    num_layers: int
    hidden_size: int
    num_tokens: int
    text_tokens: int
    is_full: bool


FULL = RunSize(28, 768, 32_768, 5_200_000, is_full=True)
TINY = RunSize(2, 128, 1_024, 40_000, is_full=False)


def made_up_word(index: int) -> str:
    """Return a made-up word of four letters for a number."""
    base = len(LETTERS)
    return "".join(LETTERS[index // base**place % base] for place in range(4))


def write_text(work: Path, size: RunSize) -> None:
    """Write tokenizer and documents, unless they exist."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "tokenizer.json").exists():
        write_tokenizer(work / "tokenizer.json")
    if not (work / DOCUMENTS).exists():
        write_documents(work / DOCUMENTS, size.text_tokens)


def write_tokenizer(path: Path) -> None:
    vocabulary = {
        token: index for index, token in enumerate([*SPECIAL, *map(made_up_word, range(NUM_WORDS))])
    }
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(path))


def write_documents(path: Path, num_tokens: int) -> None:
    """Write documents whose words have a skewed distribution, so that there is something to learn."""
    draw = random.Random(0)
    words = [made_up_word(index) for index in range(NUM_WORDS)]
    with path.open("w", encoding="utf-8") as file:
        for length in document_lengths(draw, num_tokens):
            chosen = (words[int(NUM_WORDS * draw.random() ** 3)] for _ in range(length - NUM_MARKERS))
            file.write(json.dumps({"text": " ".join(chosen)}) + "\n")


def document_lengths(draw: random.Random, num_tokens: int) -> Iterator[int]:
    """Yield lengths of documents, markers included, until they sum to `num_tokens`."""
    while num_tokens > 0:
        drawn = round(math.exp(draw.gauss(math.log(150), 0.86)))
        length = min(PACKED_LENGTH, max(8, drawn))
        yield length
        num_tokens -= length


def run_config(work: Path, run_dir: Path, size: RunSize = FULL, *, steps: int, **model: Any) -> RunConfig:
    """Configure a run on the documents of `work`; `model` sets kernels and other keys that differ."""
    return from_dict(run_keys(work, run_dir, size, steps=steps, **model))


def run_keys(work: Path, run_dir: Path, size: RunSize, *, steps: int, **model: Any) -> dict[str, Any]:
    """Return the config keys that differ from the defaults; arguments as for `run_config`."""
    shape = {"num_hidden_layers": size.num_layers, "hidden_size": size.hidden_size}
    shape |= {"num_attention_heads": size.hidden_size // 64, "intermediate_size": 4 * size.hidden_size}
    return {
        "model": {**shape, "max_position_embeddings": PACKED_LENGTH, **model},
        "tokenizer": {"path": str(work / "tokenizer.json"), "allow_special_token_rewrite": True},
        "dataset": {
            "path": str(work / DOCUMENTS),
            "cache_dir": str(work / "cache"),
            "num_workers": 2,
            "max_seq_length": PACKED_LENGTH,
        },
        "scheduler": {"warmup_steps": steps // 5},
        "trainer": {
            "output_dir": str(run_dir),
            "max_steps": steps,
            "per_device_train_batch_size": max(1, size.num_tokens // PACKED_LENGTH),
            "torch_compile": size.is_full,
            "mixed_precision": "bf16" if size.is_full else "no",
            "logging_steps": 10,
            "save_steps": 0,
            "eval_steps": 0,
        },
    }
