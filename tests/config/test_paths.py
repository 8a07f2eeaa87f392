"""Paths of a run file are relative to it."""

from pathlib import Path

import pytest

from neobert.config import Resolution, from_dict, load_document, parse_overrides, resolve
from neobert.config.keys import all_keys, path_keys


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()


def resolved(text: str, file: str = "configs/run.yaml", *overrides: str, kind: str = "file") -> Resolution:
    Path(file).write_text(text, encoding="utf-8")
    return resolve([load_document(file, kind)], parse_overrides(overrides))  # type: ignore[arg-type]


def test_a_path_starts_at_the_folder_of_its_file_wherever_it_exists():
    Path("text.txt").write_text("text", encoding="utf-8")
    found = resolved("dataset: {path: text.txt}\ntokenizer: {path: ../tok}\n")
    assert found.config.dataset.path == "configs/text.txt"
    assert found.config.tokenizer.path == "configs/../tok"


@pytest.mark.parametrize("file", ["run.yaml", "./run.yaml"])
def test_in_the_working_directory_it_is_what_was_written(file):
    assert resolved("dataset: {path: text.txt}\n", file).config.dataset.path == "text.txt"


def test_all_paths_move_and_nothing_else():
    text = "trainer: {output_dir: runs/x, resume_from_checkpoint: auto}\ndataset: {cache_dir: ~/c}\n"
    config = resolved(text + "tokenizer: {name: a/b}\nmodel: {pretrained_checkpoint: /abs}\n").config
    assert config.trainer.output_dir == "configs/runs/x"
    assert config.trainer.resume_from_checkpoint == "auto"
    assert config.dataset.cache_dir == "~/c"
    assert config.tokenizer.name == "a/b"
    assert config.model.pretrained_checkpoint == "/abs"
    assert resolved("dataset: {path: 's3://a/b'}\n").config.dataset.path == "s3://a/b"


def test_a_variable_is_filled_in_before():
    text = "variables: {root: /scratch, here: .}\ntrainer: {output_dir: '${variables.root}/x'}\n"
    found = resolved(text + "dataset: {path: '${variables.here}/text'}\n").config
    assert (found.trainer.output_dir, found.dataset.path) == ("/scratch/x", "configs/./text")


def test_profiles_and_arguments_start_at_the_working_directory():
    assert resolved("dataset: {path: text.txt}\n", kind="profile").config.dataset.path == "text.txt"
    overridden = resolved("seed: 1\n", "configs/run.yaml", "dataset.path=text.txt")
    assert overridden.config.dataset.path == "text.txt"


def test_every_key_that_holds_a_path_says_so():
    named = {
        key
        for key in all_keys()
        if key.endswith(
            (
                ".path",
                "_path",
                "_dir",
                "_checkpoint",
                "model.config",
                "continue_from",
                ".textfile",
                "chat_template",
            )
        )
    }
    assert {".".join(map(str, path)) for path in path_keys()} == named - {"trainer.overwrite_output_dir"}


def test_paths_in_a_list_start_at_the_folder_of_their_file_too():
    text = "dataset:\n  mixture: [{path: books, weight: 3}, {name: 'builtin:python-docs'}, {path: /web}]\n"
    found = resolved(text, "configs/run.yaml")
    assert [corpus.path for corpus in found.config.dataset.mixture] == ["configs/books", None, "/web"]
    found = resolved("dataset: {path: ['novels/*.txt', /web]}\n", "configs/run.yaml")
    assert found.config.dataset.path == ("configs/novels/*.txt", "/web")
    assert resolved("seed: 1\n", "configs/run.yaml", "dataset.path=[a, b]").config.dataset.path == ("a", "b")
    assert found.config.dataset.name is None


def test_a_mixture_and_a_path_replace_each_other_in_a_nearer_layer():
    below = "dataset: {mixture: [{path: books}, {path: web}]}\n"
    nearer = resolved(below, "configs/run.yaml", "dataset.path=mine").config.dataset
    assert (nearer.path, nearer.mixture) == ("mine", ())
    Path("far.yaml").write_text("dataset: {path: text, revision: main}\n", encoding="utf-8")
    Path("near.yaml").write_text(below, encoding="utf-8")
    layers = [load_document("far.yaml", "profile"), load_document("near.yaml", "file")]
    dataset = resolve(layers, parse_overrides([])).config.dataset  # type: ignore[arg-type]
    assert (dataset.path, dataset.revision, len(dataset.mixture)) == (None, None, 2)


def test_an_empty_mixture_replaces_nothing():
    Path("far.yaml").write_text("dataset: {path: text}\n", encoding="utf-8")
    Path("near.yaml").write_text("dataset: {mixture: []}\n", encoding="utf-8")
    layers = [load_document("far.yaml", "profile"), load_document("near.yaml", "file")]
    assert resolve(layers, parse_overrides([])).config.dataset.path == "text"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ("configs/weights", None)),
        ("tokenizer: {vocab_size: 512}", ("configs/weights", None)),
        ("tokenizer: {path: other}", ("configs/other", None)),
        ("tokenizer: {name: owner/name}", (None, "owner/name")),
    ],
)
@pytest.mark.parametrize("weights", ["weights", "weights/model.safetensors"])
def test_the_tokenizer_is_that_of_the_weights(weights, given, expected):
    text = f"model: {{pretrained_checkpoint: {weights}}}\n{given}\n"
    if "path" not in given:
        assert resolved(text).config.tokenizer.path is None, "the folder has no tokenizer"
    Path("configs", "weights").mkdir()
    Path("configs", "weights", "tokenizer.json").touch()
    run = resolved(text)
    assert (run.config.tokenizer.path, run.config.tokenizer.name) == expected
    if expected[0] == "configs/weights":
        assert (run.origins["tokenizer.path"].file, run.origins["tokenizer.path"].line) == (
            "configs/run.yaml",
            1,
        )
    stored = {"model": {"pretrained_checkpoint": f"configs/{weights}"}}
    assert from_dict(stored).tokenizer.path is None, "a stored config names its tokenizer"
