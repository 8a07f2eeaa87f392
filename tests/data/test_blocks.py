from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import DatasetConfig, MixtureCorpus
from neobert.data.sources import python_docs
from neobert.data.sources.blocks import Block, assign_parts, split_into_blocks
from neobert.data.sources.corpus import open_corpus
from neobert.data.sources.readers import TextSource
from tests.jsonl import write_jsonl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text of 74 documents: 3 files of 1, 30 and 3 documents, and row groups of 12, 12, 12 and 4."""
    write_jsonl(tmp_path / "a.jsonl", ["a"])
    write_jsonl(tmp_path / "b.jsonl", [f"b{number}" for number in range(30)])
    table = pa.table({"text": [f"c{number}" for number in range(40)]})
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=12)
    write_jsonl(tmp_path / "d.jsonl", [f"d{number}" for number in range(3)])
    return tmp_path


def texts(source: TextSource) -> list[str]:
    return [row["text"] for row in source.open()]


CHOICES = [
    {},
    {"eval_samples": 1},
    {"eval_samples": 31},
    {"eval_samples": 50},
    {"train_split": "train[20:60]", "eval_samples": 5},
    {"train_split": "train[31:]"},
    {"train_split": "train[:-10%]", "eval_split": "train[-10%:]"},
    {"train_split": "train[10:5]"},
    {"validation_split": 0.3},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_blocks_of_a_text_are_the_text(folder, choice):
    corpus = open_corpus(DatasetConfig(path=str(folder), **choice))
    for source in (corpus.train, corpus.evaluation):
        if source is not None:
            blocks = split_into_blocks(source)
            assert [text for block in blocks for text in texts(block.source)] == texts(source)
            assert len({block.key for block in blocks}) == len(blocks)


def test_blocks_are_files_and_row_groups(folder):
    blocks = split_into_blocks(open_corpus(DatasetConfig(path=str(folder))).train)
    groups = [f"c.parquet, row group {number}" for number in range(4)]
    assert [block.key for block in blocks] == ["a.jsonl", "b.jsonl", *groups, "d.jsonl"]
    assert [len(texts(block.source)) for block in blocks] == [1, 30, 12, 12, 12, 4, 3]
    reader = blocks[3].source.open()
    assert [next(reader)["text"] for _ in range(2)] == ["c12", "c13"]
    assert next(blocks[3].source.open(reader.state()))["text"] == "c14"


def test_the_blocks_of_a_mixture_name_their_corpus(folder):
    corpora = (MixtureCorpus(path=str(folder)), MixtureCorpus(name="builtin:conversations"))
    corpora = (corpora[0], MixtureCorpus(path=str(folder / "b.jsonl")))
    corpus = open_corpus(DatasetConfig(mixture=corpora, eval_samples=2))
    blocks = split_into_blocks(corpus.train)
    assert [block.corpus for block in blocks] == [0] * 6 + [1]
    assert [text for block in blocks for text in texts(block.source)] == texts(corpus.train)
    assert len({block.key for block in blocks}) == 7


def test_text_without_files_has_blocks_of_rows(monkeypatch):
    """`test_sources.py` reads the documents themselves, which takes seconds."""
    monkeypatch.setattr(
        python_docs, "_docstrings", lambda _: ((f"docstring {number}", "class") for number in range(5000))
    )
    corpus = open_corpus(DatasetConfig(name="builtin:python-docs", eval_samples=10))
    blocks = split_into_blocks(corpus.train)
    assert len(blocks) > 3
    counts = [block.source.count() for block in blocks]
    assert None not in counts
    assert sum(counts) == corpus.train.count()


sizes = st.lists(st.integers(0, 10**9), min_size=1, max_size=300)


@given(sizes, st.integers(1, 40))
def test_a_part_exceeds_the_mean_by_less_than_a_block(sizes, num_parts):
    assigned = assign_parts(sizes, num_parts)
    loads = [0.0] * num_parts
    for size, part in zip(sizes, assigned, strict=True):
        loads[part] += size
    assert len(assigned) == len(sizes)
    assert max(loads) <= sum(sizes) / num_parts + max(sizes)
    assert set(assigned) == set(range(num_parts)) or len(sizes) < num_parts


@given(st.lists(st.integers(900, 1000), min_size=640, max_size=700))
def test_parts_of_many_blocks_are_within_a_tenth_of_the_mean(sizes):
    loads = [0.0] * 64
    for size, part in zip(sizes, assign_parts(sizes, 64), strict=True):
        loads[part] += size
    assert max(loads) <= 1.1 * sum(sizes) / 64


def test_equal_sizes_are_assigned_in_the_same_way_everywhere():
    assert assign_parts([5, 5, 5, 5, 0], 2) == [0, 1, 0, 1, 0]
    assert Block("a", 1.0, open_corpus(DatasetConfig(name="builtin:python-docs")).train).corpus == 0
