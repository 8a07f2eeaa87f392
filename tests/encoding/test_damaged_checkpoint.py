"""A checkpoint given by its path: its model files are verified where it is read, and nothing else is."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from launcher.cli import app
from neobert.encoding import Encoder
from neobert.encoding.prompts import PROMPTS_FILE
from neobert.encoding.request import Request
from neobert.encoding.share import encode_share
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_TRAINING_FAILED, ProjectError
from neobert.evaluation.likelihood.load import load_scorer
from neobert.export.embedding_files import EmbeddingFiles
from neobert.runfiles.checkpoint import model_files
from neobert.runfiles.checkpoint.manifest import FILE_NAME, seal_checkpoint
from neobert.runfiles.checkpoint.model_files import UNREADABLE_HINT, model_size_bytes, verify_model
from neobert.runfiles.checkpoint.refusal import DAMAGED_HINT
from neobert.runfiles.model_folder import model_folder as resolve
from tests.refusals import refusal_of

READERS = {"folder": resolve, "encoder": Encoder.load, "scorer": load_scorer}


@pytest.fixture
def checkpoint(model_folder: Path) -> Path:
    """A checkpoint as the trainer saves it: the model, and a training state."""
    (model_folder / "trainer_state").mkdir()
    (model_folder / "trainer_state" / "optimizer.safetensors").write_bytes(b"moments")
    (model_folder / "README.md").write_text("a model card")
    EmbeddingFiles("avg", 32, 32, {"query": "a "}).write(model_folder)
    seal_checkpoint(model_folder, 4, "digest", "2026-01-01T00:00:00+00:00")
    return model_folder


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x40
    file.write_bytes(content)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "tokenizer.json", "1_Pooling/config.json", PROMPTS_FILE],
)
def test_a_flipped_bit_is_refused_by_every_reader(checkpoint, reader, name):
    flip(checkpoint / name)
    error = refusal_of(READERS[reader], "CKP007", f"the content of {name} changed after the save", checkpoint)
    assert error.place == str(checkpoint)
    assert error.hint == DAMAGED_HINT


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_read_may_change(checkpoint, reader):
    (checkpoint / "README.md").write_text("another model card")
    (checkpoint / "notes.txt").touch()
    flip(checkpoint / "trainer_state" / "optimizer.safetensors")
    READERS[reader](checkpoint)
    shutil.rmtree(checkpoint / "trainer_state")
    READERS[reader](checkpoint)


def test_a_folder_without_a_manifest_is_not_verified(checkpoint):
    (checkpoint / FILE_NAME).unlink()
    flip(checkpoint / "model.safetensors")
    Encoder.load(checkpoint)
    assert model_size_bytes(checkpoint) == 0


def test_a_missing_file_is_reported_by_its_reader(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    verify_model(checkpoint)
    refusal_of(Encoder.load, "EXP004", "no model.safetensors in this folder", checkpoint)


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {}}'])
def test_a_damaged_manifest_is_refused(checkpoint, content):
    (checkpoint / FILE_NAME).write_text(content)
    refusal_of(resolve, "CKP007", "checkpoint.json is damaged", checkpoint)


def test_the_cache_of_the_hub_has_links_out_of_the_folder(checkpoint, tmp_path):
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in checkpoint.iterdir():
        (snapshot / file.name).symlink_to(file)
    Encoder.load(snapshot)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (PermissionError(13, "no", "x/model.safetensors"), "no read permission for model", UNREADABLE_HINT),
        (OSError(5, "I/O error\x1b"), "cannot be read: .*I/O error\N{REPLACEMENT CHARACTER}?", DAMAGED_HINT),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(checkpoint, monkeypatch, error, message, hint):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(model_files, "verify_file", fail)
    with pytest.raises(ProjectError, match=message) as caught:
        verify_model(checkpoint)
    assert (caught.value.code, caught.value.hint) == ("CKP007", hint)
    assert "\x1b" not in str(caught.value)


def test_a_process_reads_each_file_once(checkpoint, monkeypatch):
    right, read = model_files.verify_file, []

    def counting(folder: Path, name: str, expected: Any) -> None:
        read.append(name)
        right(folder, name, expected)

    monkeypatch.setattr(model_files, "verify_file", counting)
    for reader in READERS.values():
        reader(checkpoint)
    assert "model.safetensors" in read
    assert len(read) == len(set(read))
    assert not {"README.md", "trainer_state/optimizer.safetensors"} & set(read)


def test_the_processes_of_a_job_do_not_verify_again(checkpoint, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("the model reads\n")
    (tmp_path / "out.npy.parts").mkdir()
    monkeypatch.setattr(model_files, "verify_file", lambda *_: pytest.fail("a file is hashed"))
    found = encode_share(
        Request(str(checkpoint), str(tmp_path / "texts.txt"), str(tmp_path / "out.npy")), 0, 1
    )
    assert found.num_shards == 1


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    (tmp_path / "texts.txt").write_text("the model reads\na b c\n")

    def words(name: str, folder: Path) -> list[str]:
        texts = str(tmp_path / "texts.txt")
        if name == "encode":
            return ["encode", str(folder), texts, "-o", str(tmp_path / "out.npy")]
        return ["evaluate", name, str(folder), texts, "-o", str(tmp_path / "out"), "--device", "cpu"]

    return words


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_command_refuses_a_damaged_checkpoint_and_takes_it_when_it_is_restored(checkpoint, command, capsys):
    name = "encode"
    flip(checkpoint / "model.safetensors")
    assert app.run(command(name, checkpoint)) == EXIT_CHECK_FAILED
    refusal = capsys.readouterr()
    assert "the content of model.safetensors changed after the save [CKP007]" in refusal.err
    assert (refusal.out, DAMAGED_HINT in refusal.err) == ("", True)
    flip(checkpoint / "model.safetensors")
    assert app.run(command(name, checkpoint)) == EXIT_OK


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", ["encode", "pseudo-perplexity"])
def test_outputs_that_are_not_finite_are_an_error(model_folder, command, capsys, name):
    """They were written, or printed as `-`, with exit code 0."""
    file = model_folder / "model.safetensors"
    right = file.read_bytes()
    state = load_file(file)
    state["model.encoder.weight"][:] = float("nan")
    save_file(state, file, metadata={"format": "pt"})
    assert app.run(command(name, model_folder)) == EXIT_TRAINING_FAILED
    refusal = capsys.readouterr()
    assert "of 2 of 2 texts are NaN or infinite [not-finite]" in refusal.err
    assert "pass another checkpoint" in refusal.err
    file.write_bytes(right)
    assert app.run(command(name, model_folder)) == EXIT_OK, "nothing is left of the first attempt"
