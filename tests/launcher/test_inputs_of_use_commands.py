"""Inputs of `encode` and `evaluate` that are not there: refused before a child process imports torch."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.commands import evaluate_glue, evaluation
from launcher.commands.text_jobs import texts_and_output
from launcher.process import json_child
from neobert.errors import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import require_model_folder

COMMANDS = {
    "encode": ["encode", "FOLDER", "DATA", "-o", "out.npy"],
    "pseudo-perplexity": ["evaluate", "pseudo-perplexity", "FOLDER", "DATA", "-o", "out"],
    "blimp": ["evaluate", "blimp", "FOLDER", "DATA", "-o", "out"],
    "retrieval": ["evaluate", "retrieval", "FOLDER", "DATA", "-o", "out"],
    "glue": ["evaluate", "glue", "FOLDER", "DATA", "-o", "out", "--tasks", "cola"],
}


@pytest.fixture
def begun_run(tmp_path: Path) -> Path:
    """A run directory before its first checkpoint."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "resolved.json").write_text("{}")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _in_a_folder_without_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_child.subprocess, "Popen", _start_nothing)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "texts.txt").write_text("text")


def _start_nothing(*_: object, **__: object) -> None:
    raise AssertionError("a child process was started")


@pytest.fixture
def refused(command: Callable[..., Any]) -> Callable[[str, str, str], str]:
    """Run a command on a folder and data; return the line in which it refuses them, without folders."""

    def run(name: str, folder: str, data: str) -> str:
        words = [{"FOLDER": folder, "DATA": data}.get(word, word) for word in COMMANDS[name]]
        error = command(*words).refused(EXIT_USAGE).err
        assert not Path("out").exists()
        return re.sub(r"\S*/", "", error.splitlines()[0])

    return run


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("data", ["absent.txt", "~nobody-here/absent.txt", f"/{'a' * 300}/absent.txt"])
def test_missing_data_is_refused_at_once(name, data, refused):
    assert refused(name, "model", data) == "error: absent.txt: no such file or folder [unusable-path]"


def test_a_text_of_one_word_is_refused_with_the_way_to_encode_it(command):
    assert "- to read a text of one word from standard input" in command("encode", "model", "hello").err


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("absent", "no such folder"),
        ("~nobody-here/absent", "no such folder"),
        ("texts.txt", "the path is a file, not a model folder"),
        (".", "the folder is not a model folder: it has no config.json"),
        ("run", "the run has no checkpoint yet"),
    ],
)
def test_a_folder_without_a_model_is_refused_at_once(name, folder, reason, begun_run, refused):
    assert refused(name, folder, "texts.txt").endswith(f"{reason} [model-folder]")


def test_the_folder_around_exported_formats_is_refused_with_those_of_weights(tmp_path):
    for file in ("hf/model.safetensors", "onnx/model.onnx"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    with pytest.raises(ProjectError) as refusal:
        require_model_folder(tmp_path)
    assert refusal.value.hint == f"pass a folder in it: {tmp_path / 'hf'}"


def test_a_repository_in_the_cache_of_the_hub_names_its_commits(tmp_path):
    commit = tmp_path / "models--a--b" / "snapshots" / "0123"
    commit.mkdir(parents=True)
    (commit / "model.safetensors").touch()
    with pytest.raises(ProjectError) as refusal:
        require_model_folder(tmp_path / "models--a--b")
    assert refusal.value.hint == f"pass a folder in it: {commit}"


def test_a_run_without_a_checkpoint_may_have_failed(begun_run):
    with pytest.raises(ProjectError) as refusal:
        require_model_folder(begun_run)
    assert f"neobert-launch status {begun_run}" in refusal.value.hint


@pytest.mark.parametrize("name", COMMANDS)
def test_an_adapter_is_refused_with_the_folder_of_the_merged_weights(name, tmp_path, refused):
    (tmp_path / "model" / "adapter").mkdir()
    (tmp_path / "model" / "adapter" / "adapter_config.json").write_text("{}")
    reason = "the folder is an adapter without its base model; pass model, which has both merged"
    assert refused(name, "model/adapter", "texts.txt") == f"error: adapter: {reason} [model-folder]"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "encode"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_refused_evaluation_leaves_no_empty_folder_behind(name, is_new, tmp_path, monkeypatch, command):
    def refuse(*_: object, **__: object) -> None:
        assert (tmp_path / "out").is_dir()
        raise ProjectError("blimp-files", "holds no pairs", "pass other files", "texts.txt")

    for module in (evaluation, evaluate_glue):
        monkeypatch.setattr(module, "run_json_child", refuse)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    settings = {"model_type": "neobert", **dict.fromkeys(sizes, 64)}
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    if not is_new:
        (tmp_path / "out").mkdir()
    words = [{"FOLDER": "model", "DATA": "texts.txt"}.get(word, word) for word in COMMANDS[name]]
    assert command(*words, "--device", "cpu").code == EXIT_CHECK_FAILED
    assert (tmp_path / "out").exists() is not is_new


def test_ctrl_c_says_that_the_same_command_continues(command, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.commands.text_jobs.run_json_child", interrupted)
    answer = command("encode", "model", "texts.txt", "-o", "out.npy").refused(EXIT_INTERRUPTED)
    message = " ".join(answer.err.split())
    assert "Ctrl-C: stopped [interrupted] = hint: run the same command again to continue" in message


@pytest.mark.parametrize("name", ["encode", "predict"])
@pytest.mark.parametrize("text", ["see https://example.org//a/ and ./b", "a text of words " * 400])
def test_a_text_is_read_as_it_was_given(name, text, command, monkeypatch):
    read: list[str] = []

    def interrupted(_: str, content: dict[str, str], **__: object) -> None:
        read.append(Path(content["texts"]).read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.commands.text_jobs.run_json_child", interrupted)
    command(name, "model", text, "-o", "out.jsonl").refused(EXIT_INTERRUPTED)
    assert [json.loads(content) for content in read] == [{"text": text}]


def test_a_fault_of_standard_input_does_not_name_a_temporary_file(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    with pytest.raises(ProjectError) as caught, texts_and_output("-", None) as (source, _):
        raise ProjectError("unusable-texts", "holds no texts", place=f"{source}:1")
    assert caught.value.place == "standard input:1"


@pytest.mark.parametrize("output", ["texts.txt", "./model/../texts.txt", "link.txt"])
def test_an_output_that_is_the_file_of_the_texts_is_refused_and_the_file_is_kept(output, tmp_path):
    (tmp_path / "link.txt").symlink_to("texts.txt")
    with (
        pytest.raises(ProjectError, match="which it would replace"),
        texts_and_output("texts.txt", tmp_path / output),
    ):
        pass
    assert (tmp_path / "texts.txt").read_text() == "text"
