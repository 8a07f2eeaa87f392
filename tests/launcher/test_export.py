"""`export` on the command line: what it takes, what it refuses before a child starts, what it prints."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.commands import export
from launcher.commands.export import ExportArguments, choose_folders, steps_to_average
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_USAGE, ProjectError
from neobert.export_formats import FORMATS, ExportFormat
from neobert.runfiles.checkpoint.manifest import seal_checkpoint
from neobert.runfiles.checkpoint.refusal import DAMAGED_HINT
from neobert.runfiles.model_folder import model_folder
from tests.refusals import refusal_of


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for step in (100, 200, 300):
        folder = tmp_path / "run" / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        seal_checkpoint(folder, step, "digest", "2026-01-01T00:00:00+00:00")
    return tmp_path / "run"


def arguments(source: Path, *formats: str, average: str = "") -> ExportArguments:
    output = source.parent / "out"
    return ExportArguments(source=source, formats=formats, output=output, average=average, pooling=None)


def names(folders: list[Path]) -> list[str]:
    return [folder.name for folder in folders]


def test_a_run_gives_its_newest_checkpoint(run_dir):
    checkpoints = run_dir / "checkpoints"
    assert names(choose_folders(run_dir, "")) == names(choose_folders(checkpoints, "")) == ["300"]
    assert names(choose_folders(checkpoints / "200", "")) == ["200"]


@pytest.mark.parametrize("use", [lambda run_dir: choose_folders(run_dir, "")[0], model_folder])
def test_a_run_gives_its_best_checkpoint_if_it_has_one(run_dir, use):
    (run_dir / "checkpoints" / "best").symlink_to("200")
    assert use(run_dir).name == "200"
    (run_dir / "checkpoints" / "200" / "config.json").write_text("{ }")
    refusal_of(use, "CKP007", "config.json has 3 bytes", run_dir)


@pytest.mark.parametrize("use", [lambda run_dir: choose_folders(run_dir, "")[0], model_folder])
def test_a_damaged_newest_checkpoint_is_refused_and_the_newest_usable_one_named(run_dir, use):
    """An older checkpoint is another model: `export` used it silently, where `encode` refused."""
    checkpoints = run_dir / "checkpoints"
    assert use(run_dir) == checkpoints / "300"
    (checkpoints / "300" / "config.json").write_text("{ }")
    error = refusal_of(use, "CKP007", "config.json has 3 bytes, not 2", run_dir)
    assert error.place == str(checkpoints / "300")
    assert error.hint == f"restore the checkpoint from a copy, or pass {checkpoints / '200'}"
    for step in ("100", "200"):
        (checkpoints / step / "config.json").write_text("{ }")
    with pytest.raises(ProjectError) as caught:
        use(run_dir)
    assert caught.value.hint == DAMAGED_HINT


@pytest.mark.parametrize(
    ("formats", "name", "message", "hint"),
    [
        (
            ("gguf-ready", "fork"),
            "figures.json",
            "no exported format has a model card for these figures: --to gguf-ready,fork",
            "add hf or sentence-transformers or onnx to",
        ),
        (("hf",), "absent.json", "no such file", "pass an existing file or folder as --results"),
    ],
)
def test_figures_that_no_card_would_have_are_refused_before_the_model_is_loaded(
    run_dir, monkeypatch, formats, name, message, hint
):
    monkeypatch.setattr(export, "run_json_child", lambda *_, **__: pytest.fail("the model is loaded"))
    (run_dir / "figures.json").write_text("{}")
    with pytest.raises(ProjectError, match=message) as caught:
        export.run(replace(arguments(run_dir, *formats), results=(run_dir / name,)), "text")
    assert caught.value.hint.startswith(hint)
    assert not (run_dir.parent / "out").exists()


@pytest.mark.parametrize(
    ("average", "steps"), [("2", ["200", "300"]), ("3", ["100", "200", "300"]), ("100,300", ["100", "300"])]
)
def test_checkpoints_to_average(run_dir, average, steps):
    assert names(choose_folders(run_dir, average)) == steps


@pytest.mark.parametrize(
    ("average", "reason"),
    [
        ("4", "exceeds the number of checkpoints (3)"), ("1", "does not select at least two"),
        ("0", "does not select at least two"),
        ("100,100", "does not select at least two"), ("100,150", "no checkpoint of step 150"),
        ("last", "is not a number"), ("100,", "is not a number"), ("-2", "is not a number"),
        ("²", "is not a number"), ("9" * 5000, "is not a number"),
    ],
)  # fmt: skip
def test_an_average_of_nothing_is_refused(run_dir, average, reason):
    error = refusal_of(steps_to_average, "export-average", reason, run_dir / "checkpoints", average)
    assert error.hint == "available checkpoints: 100, 200, 300"


def test_a_damaged_checkpoint_is_never_averaged(run_dir):
    (run_dir / "checkpoints" / "100" / "config.json").write_text("{ }")
    refusal_of(choose_folders, "CKP007", "config.json has 3 bytes", run_dir, "3")


def test_a_folder_of_transformers_needs_no_manifest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ProjectError, match=r"contains no checkpoint, and no config\.json with weights"):
        choose_folders(tmp_path, "")
    (tmp_path / "model.safetensors").touch()
    assert choose_folders(tmp_path, "") == [tmp_path]
    with pytest.raises(ProjectError, match="--average needs a run directory"):
        choose_folders(tmp_path, "2")


def test_an_adapter_names_the_folder_of_the_merged_weights(tmp_path):
    (tmp_path / "100" / "adapter").mkdir(parents=True)
    (tmp_path / "100" / "config.json").touch()
    (tmp_path / "100" / "adapter" / "adapter_config.json").touch()
    with pytest.raises(ProjectError, match=r"base model; pass \S+/100, which has both merged"):
        choose_folders(tmp_path / "100" / "adapter", "")


def test_a_source_without_a_checkpoint_is_named(tmp_path):
    (tmp_path / "run.yaml").touch()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "resolved.json").touch()
    reasons = {
        "absent": "no such folder",
        "run.yaml": "the source is a file, not a folder",
        "begun": "the run has no checkpoint yet",
    }
    for name, reason in reasons.items():
        error = refusal_of(choose_folders, "export-source", reason, tmp_path / name, "")
        assert error.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("formats", "reason"), [(("hf", "pickle"), "pickle is not an export format"), ((), "no export format")]
)
def test_unknown_formats_are_refused(run_dir, formats, reason):
    error = refusal_of(export.run, "export-format", reason, arguments(run_dir, *formats), "text")
    assert error.exit_code == EXIT_USAGE
    assert all(name in error.hint for name in FORMATS)


def test_a_missing_package_is_one_line_with_the_command(run_dir, monkeypatch):
    absent = ExportFormat("onnx", "onnx", "", ("json", "not_there"), ("not-there>=1", "other>=2"))
    monkeypatch.setitem(FORMATS, "onnx", absent)
    with pytest.raises(ProjectError) as caught:
        export.run(arguments(run_dir, "hf", "onnx"), "text")
    assert str(caught.value).startswith("--to onnx: not_there is not installed")
    assert caught.value.hint == "pip install 'not-there>=1' 'other>=2'"
    assert caught.value.exit_code == EXIT_CHECK_UNKNOWN


def test_the_rerun_of_a_stopped_export_names_the_formats_that_are_missing(run_dir):
    for name in ("onnx", "hf"):
        (run_dir.parent / "out" / name).mkdir(parents=True)
    with pytest.raises(ProjectError) as caught:
        export.run(arguments(run_dir, "onnx", "hf", "fork", "gguf-ready"), "text")
    assert caught.value.message == "already contains onnx, hf"
    way = "export the missing formats with --to fork,gguf-ready, or choose a new --output"
    assert caught.value.hint == way


@pytest.mark.parametrize("output", [".", "exported"])
def test_nothing_is_exported_into_the_folder_of_a_checkpoint(output, run_dir, monkeypatch):
    checkpoint = run_dir / "checkpoints" / "300"
    monkeypatch.chdir(checkpoint)
    with pytest.raises(ProjectError, match="the folder is a checkpoint"):
        export.run(replace(arguments(run_dir, "hf"), output=Path(output)), "text")
    assert choose_folders(checkpoint, "") == [checkpoint]


@pytest.mark.parametrize(
    ("steps", "shown"), [([20], "20"), ([10, 20], "mean of 10, 20"), ([None], "-")], ids=str
)
def test_the_table_names_folders_as_the_command_line_did_and_the_step(steps, shown):
    report = {
        "source": [{"step": step} for step in steps],
        "max_difference": {"logits": 2e-7},
        "limit": 1e-5,
        "read_with": {"torch": "2"},
        "folder": "/x/out/hf",
    }
    text = export.export_text({"hf": report}, Path("out"))
    cells = ["hf", "out/hf", *shown.split(), "2.0e-07", "(limit", "1e-05)", "torch", "2"]
    assert text.splitlines()[1].split() == cells


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_command_prints_one_json_object_for_any_end(run_dir):
    command = [sys.executable, "-m", "launcher", "export", str(run_dir), "--to", "hf", "-o", "out"]
    done = subprocess.run(
        [*command, "--output-format", "json"], cwd=run_dir.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["findings"][0]["code"] == "EXP007"
    assert not (run_dir.parent / "out" / "hf").exists()
