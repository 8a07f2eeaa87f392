"""The step of a datatrove pipeline writes what `data prepare --part` writes of the same text."""

import json
from pathlib import Path

import pytest

from neobert.data import datatrove_step
from neobert.data.store.join import join
from neobert.data.store.part import prepare_part
from neobert.errors import ProjectError
from neobert.runfiles.prepared_parts import MANIFEST, PartNumber
from tests.data.conftest import sentences, write_jsonl

TASKS = 2


def test_without_datatrove_the_step_names_the_command_that_installs_it(configure, tmp_path, monkeypatch):
    monkeypatch.setattr(datatrove_step, "PipelineStep", object)
    with pytest.raises(ModuleNotFoundError, match=r"is not installed: pip install 'datatrove\[io\]"):
        datatrove_step.TokenStoreWriter(configure(), tmp_path)


@pytest.fixture
def text(tmp_path) -> Path:
    """Text of a file per task, the largest first, as parts get them."""
    for task in range(TASKS):
        write_jsonl(tmp_path / "text" / f"{task}.jsonl", sentences(120 - 40 * task, task))
    return tmp_path / "text"


def write(config, text: Path, output: Path, *tasks: int) -> None:
    """Run tasks of a pipeline from files to prepared text, as an executor runs them."""
    pytest.importorskip("datatrove")
    from datatrove.pipeline.readers import JsonlReader

    for task in tasks or range(TASKS):
        step = datatrove_step.TokenStoreWriter(config, output)
        step.run(JsonlReader(str(text)).run(None, task, TASKS), task, TASKS)


def content(part: Path) -> dict[str, bytes]:
    """Return the files of a part, and its manifest without the names of the source."""
    files = {str(path.relative_to(part)): path.read_bytes() for path in part.rglob("*") if path.is_file()}
    manifest = json.loads(files[MANIFEST])
    manifest["request"] |= {"source": None}
    for split in manifest["splits"].values():
        split["blocks"] = [block | {"key": None} for block in split["blocks"]]
    return files | {MANIFEST: json.dumps(manifest, sort_keys=True).encode()}


def joined(folder: Path) -> dict[str, object]:
    """Join parts, and return the report without the place of the text."""
    report = join(folder)
    return {
        name: value | {"source": None} if isinstance(value, dict) else value
        for name, value in report.items()
        if name != "folder"
    }


def test_a_task_writes_the_part_of_the_same_text(configure, text, tmp_path):
    config = configure(dataset__path=str(text), dataset__eval_samples=None)
    write(config, text, tmp_path / "written")
    for number in range(1, TASKS + 1):
        part = PartNumber(number, TASKS)
        prepare_part(config, tmp_path / "prepared", part)
        assert content(tmp_path / "written" / part.folder) == content(tmp_path / "prepared" / part.folder)


def test_a_share_of_the_documents_is_evaluation_text(configure, text, tmp_path):
    """`data prepare` gives the blocks of both splits to any part."""
    config = configure(dataset__path=str(text), dataset__eval_samples=None, dataset__validation_split=0.2)
    write(config, text, tmp_path / "written")
    for number in range(1, TASKS + 1):
        prepare_part(config, tmp_path / "prepared", PartNumber(number, TASKS))
    report = joined(tmp_path / "written")
    assert report["eval"]["documents"] > 10
    assert report == joined(tmp_path / "prepared")


def test_a_task_that_is_repeated_replaces_its_part(configure, text, tmp_path):
    config = configure(dataset__path=str(text), dataset__eval_samples=None)
    write(config, text, tmp_path / "written")
    first, second = (tmp_path / "written" / PartNumber(number, TASKS).folder for number in (1, 2))
    before, untouched = content(first), (second / MANIFEST).stat().st_mtime_ns
    (first / "train.tokens").write_bytes(b"")
    write(config, text, tmp_path / "written", 0)
    assert content(first) == before
    assert (second / MANIFEST).stat().st_mtime_ns == untouched


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset__eval_samples": 5}, "dataset.eval_samples does not apply"),
        ({"tokenizer__path": None, "tokenizer__vocab_size": 100}, "would train one"),
    ],
)
def test_what_tasks_cannot_know_is_refused_at_once(configure, tmp_path, changes, says):
    pytest.importorskip("datatrove")
    with pytest.raises(ProjectError, match=says) as caught:
        datatrove_step.TokenStoreWriter(configure(**{"dataset__eval_samples": None} | changes), tmp_path)
    assert caught.value.hint
