"""A small text, a tokenizer trained on it, and configurations that prepare it."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from neobert.config.schema import DatasetConfig, RunConfig, TokenizerConfig
from neobert.data.batches.streams import Cursor, Microbatch, TrainStream
from neobert.data.sources.rows import Row, RowFormat, text_rows
from neobert.data.store.prepare import prepare
from neobert.data.store.prepared_data import PreparedData
from neobert.data.tokenize.trained import train_tokenizer
from tests.jsonl import write_jsonl

WORDS = [
    a + b for a in ("ba", "de", "fi", "go", "lu", "mer", "no", "pa") for b in ("", "la", "ren", "st", "to")
]


def rows_of(texts: Iterable[str]) -> list[Row]:
    """Make rows of a text each."""
    return [{"text": text} for text in texts]


def format_of(column: str | None = None) -> RowFormat:
    """Describe rows of a text."""
    return text_rows(DatasetConfig(text_column=column))


def sentences(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Draw documents of 1 to `longest` words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(sentences(200), TokenizerConfig(vocab_size=120)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "text.jsonl", sentences(300))


Configure = Callable[..., RunConfig]


@pytest.fixture
def configure(tmp_path: Path, tokenizer_dir: Path, corpus_file: Path) -> Configure:
    """Make a config; keyword arguments `section__key=value` change it."""
    return configurator(tmp_path / "cache", tokenizer_dir, corpus_file)


def configurator(cache: Path, tokenizer_dir: Path, corpus_file: Path) -> Configure:
    """Return the function behind the `configure` fixture."""
    defaults: dict[str, Any] = {
        "dataset__path": str(corpus_file),
        "dataset__max_seq_length": 32,
        "dataset__cache_dir": str(cache),
        "dataset__num_workers": 0,
        "tokenizer__path": str(tokenizer_dir),
        "trainer__per_device_train_batch_size": 4,
        "trainer__per_device_eval_batch_size": 2,
    }

    def make(**changes: Any) -> RunConfig:
        config = RunConfig(seed=changes.pop("seed", 0))
        for name, value in (defaults | changes).items():
            section, key = name.split("__")
            config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
        return config

    return make


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, corpus_file: Path
) -> tuple[Configure, PreparedData]:
    """One prepared text for the tests that only read it."""
    make = configurator(tmp_path_factory.mktemp("cache"), tokenizer_dir, corpus_file)
    return make, prepare(make(dataset__eval_samples=30))


KINDS = {
    "prepared": {},
    "prepared in windows": {},
    "padded rows": {"datacollator__pack_sequences": False, "datacollator__pad_to_multiple_of": 4},
    "stream of files": {"dataset__streaming": True, "dataset__shuffle_buffer_size": 70},
    "stream in order": {"dataset__streaming": True, "dataset__shuffle_buffer_size": 0},
    "stream of datasets": {
        "dataset__streaming": True,
        "dataset__shuffle_buffer_size": 70,
        "dataset__path": None,
    },
}
# Microbatches: two epochs and more of each kind.
MANY = 140
Text = tuple[RunConfig, PreparedData]


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> dict[str, Text]:
    """One prepared text of each kind."""
    root = tmp_path_factory.mktemp("texts")
    for number in range(3):
        write_jsonl(root / "data" / f"train-{number}.jsonl", [*sentences(70, number), "", "ba " * 80])
    make = configurator(root / "cache", tokenizer_dir, root / "data")

    def text(kind: str) -> Text:
        changes = {"dataset__eval_samples": 20, **KINDS[kind]}
        if kind == "stream of datasets":
            changes["dataset__name"] = str(root / "data")
        config = make(**changes)
        return config, prepare(config)

    return {kind: text(kind) for kind in KINDS}


def read(
    text: Text, count: int, rank: int = 0, world_size: int = 1, cursor: Cursor | None = None, **dataset: int
) -> list[Microbatch]:
    config, data = text
    config = replace(config, dataset=replace(config.dataset, **dataset))
    with TrainStream(data, config, data.tokenizer, rank, world_size, cursor) as stream:
        return list(islice(stream, count))


def same(left: Microbatch, right: Microbatch, *, cursor: bool = True) -> bool:
    names = ("input_ids", "labels", "position_ids", "cu_seqlens", "attention_mask", "sample_ids")
    pairs = [(getattr(left, name), getattr(right, name)) for name in names]
    tensors = all((a is b) if a is None or b is None else torch.equal(a, b) for a, b in pairs)
    numbers = ("max_seqlen", "num_tokens", "num_targets", "num_segments")
    equal = all(getattr(left, name) == getattr(right, name) for name in numbers)
    return tensors and equal and (not cursor or place_of(left) == place_of(right))


def place_of(batch: Microbatch) -> tuple[object, ...]:
    """Where a cursor points; `datasets` has more than one spelling of the same position."""
    cursor = batch.cursor
    return cursor.epoch, cursor.window, cursor.index, cursor.stream and cursor.stream["segment"]
