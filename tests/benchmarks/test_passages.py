"""Passages to measure learning with: of one side each, short enough, and as many of each package."""

from __future__ import annotations

import json
import sys

import numpy as np
import passages
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The folder that the program wrote from a corpus whose words name their package."""
    words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, **{name: 3 + index for index, name in enumerate("abcdefg")}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    corpus = {
        "train/one": ["a a a\na a", " ".join("a" * 1_100)],
        "train/two": ["b b b"],
        "validation/three": ["c " * 2, "c " * 3, "c " * 4],
        "validation/four": ["d " * 2, "d " * 3, "d " * 4],
        "test/five": ["e e"],
        "test/wikitext": ["f f"],
    }
    for name, texts in corpus.items():
        path = tmp_path / "corpus" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    monkeypatch.setattr(passages, "MAX_HELD_OUT", 4)
    folders = [str(tmp_path / name) for name in ("corpus", "tokenizer", "work")]
    monkeypatch.setattr(sys, "argv", ["passages.py", *folders])
    passages.main()
    return tmp_path / "work"


def test_a_passage_is_of_one_document_and_short(work):
    found = [json.loads(line)["text"] for line in (work / "train.jsonl").read_text().splitlines()]
    assert found[0] == "a a a\na a"
    assert [len(text.split()) for text in found] == [5, 500, 500, 100, 3]


def test_each_side_has_its_packages(work):
    with np.load(work / "passages.npz") as arrays:
        sides = ("train", "held_out", "test", "wikitext")
        words = {side: set(arrays[side].tolist()) - {1, 2} for side in sides}
        lengths = np.diff(arrays["held_out_offsets"])
    assert words == {"train": {3, 4}, "held_out": {5, 6}, "test": {7}, "wikitext": {8}}
    assert len(lengths) == 4, "two of each package"
    assert (work / "tokenizer" / "tokenizer.json").exists()
