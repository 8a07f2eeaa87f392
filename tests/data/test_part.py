"""One part of a text: written once, verified, and repeated alone after a kill."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from neobert.data.store.part import prepare_part
from neobert.data.store.token_store import MANIFEST
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.prepared_parts import PartNumber
from tests.data.conftest import configurator, sentences, write_jsonl
from tests.refusals import refusal_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def text(tmp_path) -> Path:
    """Text of four files."""
    for number in range(4):
        write_jsonl(tmp_path / "text" / f"{number}.jsonl", sentences(60, number))
    return tmp_path / "text"


refused = partial(refusal_of, prepare_part)


def test_a_part_that_is_there_is_verified_and_not_written_again(configure, text, tmp_path):
    config, part = configure(dataset__path=str(text)), PartNumber(2, 3)
    first = prepare_part(config, tmp_path / "parts", part)
    folder = tmp_path / "parts" / "part-2-of-3"
    before = (folder / MANIFEST).stat().st_mtime_ns
    second = prepare_part(config, tmp_path / "parts", part)
    assert (first["is_new"], second["is_new"]) == (True, False)
    assert second == first | {"is_new": False}
    assert (folder / MANIFEST).stat().st_mtime_ns == before
    other = configure(dataset__path=str(text), dataset__max_seq_length=24)
    refused("DAT002", "different values of max_length", other, tmp_path / "parts", part)
    with (folder / "train.tokens").open("r+b") as file:
        file.write(b"\xff")
    refused("DAT001", "does not match its checksum", config, tmp_path / "parts", part)


def test_more_parts_than_blocks_are_refused(configure, text, tmp_path):
    config = configure(dataset__path=str(text))
    error = refused("DAT001", "has 4 blocks", config, tmp_path / "parts", PartNumber(1, 5))
    assert "at most 4 parts, such as --part 1/4" in error.hint
    assert prepare_part(config, tmp_path / "parts", PartNumber(1, 4))["train"]["documents"] == 60


def test_streams_and_tokenizers_to_train_are_refused(configure, text, tmp_path):
    stream = configure(dataset__path=str(text), dataset__streaming=True)
    refused("DAT001", "stream", stream, tmp_path / "parts", PartNumber(1, 2))
    untrained = configure(dataset__path=str(text), tokenizer__path=None, tokenizer__vocab_size=100)
    error = refused("DAT001", "train one on the whole text", untrained, tmp_path, PartNumber(1, 2))
    assert "tokenizer train" in error.hint


def test_text_that_changes_meanwhile_is_refused(configure, text, tmp_path, monkeypatch):
    from neobert.data.store import part_writer as module

    write = module.BlockWriter.write

    def meanwhile(*arguments):
        described = write(*arguments)
        write_jsonl(text / "0.jsonl", ["another text"])
        return described

    monkeypatch.setattr(module.BlockWriter, "write", meanwhile)
    config = configure(dataset__path=str(text))
    refused("DAT001", "changed during preparation", config, tmp_path / "parts", PartNumber(1, 2))
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [".part-1-of-2.lock"]


SLOW_CHILD = """
import sys, time
from pathlib import Path
from neobert.data.store import block_writer
from neobert.data.store.part import prepare_part
from neobert.data.tokenize import encoding_pool
from neobert.runfiles.prepared_parts import PartNumber
from tests.data.conftest import configurator

encoding_pool.BATCH_DOCUMENTS = 10
whole = block_writer.SplitWriter.append
block_writer.SplitWriter.append = lambda self, encoded: (whole(self, encoded), time.sleep(600))
prepare_part(configurator(*map(Path, sys.argv[1:4]))(), Path(sys.argv[4]), PartNumber(1, 2))
"""


@pytest.mark.usefixtures("warm")
def test_a_killed_part_is_repeated_alone(tokenizer_dir, text, tmp_path):
    config, parts = configurator(tmp_path, tokenizer_dir, text)(), tmp_path / "parts"
    other = prepare_part(config, parts, PartNumber(2, 2))
    arguments = [tmp_path, tokenizer_dir, text, parts]
    with subprocess.Popen([sys.executable, "-c", SLOW_CHILD, *map(str, arguments)], cwd=ROOT) as process:
        deadline = time.monotonic() + 60
        while not list(parts.glob(".*.partial/train.tokens")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert list(parts.glob(".*.partial")), "the process was killed while it wrote"
    assert not (parts / "part-1-of-2").exists()
    assert prepare_part(config, parts, PartNumber(1, 2))["is_new"]
    assert prepare_part(config, parts, PartNumber(2, 2)) == other | {"is_new": False}
    assert not list(parts.glob(".*.partial"))


def test_the_blocks_of_a_part_do_not_depend_on_their_number(configure, text, tmp_path):
    config = configure(dataset__path=str(text), dataset__eval_samples=7)

    def blocks(of: int, **dataset) -> dict[str, dict[int, dict]]:
        parts = tmp_path / f"parts-{of}"
        changed = replace(config, dataset=replace(config.dataset, **dataset))
        found: dict[str, dict[int, dict]] = {"train": {}, "eval": {}}
        for number in range(1, of + 1):
            prepare_part(changed, parts, PartNumber(number, of))
            manifest = json.loads((parts / f"part-{number}-of-{of}" / MANIFEST).read_text())
            for split, each in manifest["splits"].items():
                found[split] |= {block["index"]: block for block in each["blocks"]}
        return found

    assert blocks(3) == blocks(1)


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "1 / 4", "1/4\n", "01/4"])
def test_what_is_not_a_part(text):
    with pytest.raises(ProjectError) as caught:
        PartNumber.from_option(text)
    assert caught.value.exit_code == EXIT_USAGE


def test_a_part_names_its_folder():
    part = PartNumber.from_option("3/64")
    assert PartNumber.from_folder(part.folder) == part
    assert PartNumber.from_folder("part-3-of-64.old") is None
    assert PartNumber.from_folder(".part-3-of-64.partial") is None
