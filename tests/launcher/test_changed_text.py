"""Files of a finished run's text that have changed since."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.rundir.changed_text import changed_files
from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.sources.corpus import open_corpus
from neobert.data.sources.file_digests import FileDigests

TEXT = "A document of some words.\n"
STATE, PREPARED = "run/checkpoints/4/trainer_state/state.json", "cache/key/manifest.json"


def write(file: str, content: dict[str, Any]) -> None:
    Path(file).parent.mkdir(parents=True)
    Path(file).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def config() -> RunConfig:
    """A run on the splits train and validation of a folder, and the records that it leaves."""
    Path("notes").mkdir()
    for name in ("train-1.txt", "train-2.txt", "validation.txt", "test.txt"):
        Path("notes", name).write_text(TEXT, encoding="utf-8")
    config = from_dict({"dataset": {"path": "notes", "cache_dir": "cache"}})
    source = open_corpus(config.dataset, describe=FileDigests(Path("digests")).describe).identity()
    write(STATE, {"identity": {"data fingerprint": "abc"}})
    Path("run/checkpoints/latest").symlink_to("4")
    write(PREPARED, {"fingerprint": "abc", "request": {"source": source}})
    write("cache/another/manifest.json", {"fingerprint": "def", "request": {"source": [["a.txt", 1, "a"]]}})
    return config


def test_files_that_were_read_are_compared(config):
    assert changed_files(config, Path("run")) == []
    Path("notes", "test.txt").write_text("Not read.\n", encoding="utf-8")
    assert changed_files(config, Path("run")) == []
    Path("notes", "train-2.txt").unlink()
    Path("notes", "train-3.txt").write_text(TEXT, encoding="utf-8")
    Path("notes", "validation.txt").write_text(TEXT.upper(), encoding="utf-8")
    assert changed_files(config, Path("run")) == ["train-2.txt", "train-3.txt", "validation.txt"]


@pytest.mark.parametrize("absent", [STATE, PREPARED])
def test_without_a_record_or_the_text_nothing_is_known(config, absent):
    Path("notes").rename("moved")
    assert changed_files(config, Path("run")) == []
    Path("notes").mkdir()
    Path(absent).unlink()
    assert changed_files(config, Path("run")) == []
