"""Run directories that people have rearranged: a launch resumes the verified checkpoint, or is refused."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import launcher.commands.train as train_command
from launcher.cli import app
from launcher.run.summary import summarize_run
from neobert.errors import ProjectError
from neobert.receipt import read_receipt
from neobert.runfiles.checkpoint.manifest import FILE_NAME, _content_digest
from neobert.train import read_config
from neobert.training.checkpoint.publish import remove
from neobert.training.loop.assembly import choose_start
from neobert.training.telemetry.metrics import TrainingLog
from tests.launcher.conftest import _away_from_the_repository, command
from tests.launcher.test_real_run import RUN_FILE
from tests.refusals import refusal_of
from tests.training.conftest import read_lines, train

__all__ = ["_away_from_the_repository", "command"]

pytestmark = pytest.mark.e2e


def supervise_here(launch, forwarder, on_tick):
    """Run the session in this process: a trainer in a process of its own takes ten times as long to start."""
    try:
        code, message = train(launch.folder), ""
    except ProjectError as error:
        code, message = error.exit_code, str(error)
    verdict = {"status": "failed" if code else "finished", "exit_code": code, "step": 0, "message": message}
    return summarize_run(
        launch.folder, code, forwarder.seen, launch.error_file, has_begun=not code, verdict=verdict
    )


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Iterator[Path]:
    """A folder with a text, a run file, and a run of 4 steps with checkpoints 2 and 4."""
    folder = tmp_path_factory.mktemp("launched")
    documents = [f"document {number} speaks of {number % 7} things" for number in range(300)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    run_file = RUN_FILE.replace("save_steps: 5", "save_steps: 2").replace("max_steps: 40", "max_steps: 4")
    (folder / "run.yaml").write_text(run_file, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_command, "supervise", supervise_here)
        patched.chdir(folder)
        assert app.run(["train", "@run.yaml"]) == 0
        yield folder


@pytest.fixture
def folder(launched, tmp_path) -> Path:
    """A copy of that folder, which is the current one."""
    shutil.copytree(launched, tmp_path, dirs_exist_ok=True, symlinks=True)
    return tmp_path


@pytest.fixture
def resume(folder, command):
    """Launch the run again for more steps."""
    return lambda *more, steps=6: command("train", "@run.yaml", "--set", f"trainer.max_steps={steps}", *more)


def steps_of(run_dir: Path) -> list[int]:
    return [line["step"] for line in read_lines(run_dir / "metrics.jsonl")]


def link_away(path: Path, other: Path, *, is_relative: bool) -> None:
    other.parent.mkdir(exist_ok=True)
    path.rename(other)
    path.symlink_to(os.path.relpath(other, path.parent) if is_relative else other)


@pytest.mark.parametrize(
    ("place", "selector", "is_relative"),
    [
        ("checkpoints", "auto", False),
        ("checkpoints", "best", True),
        ("checkpoints", "run/checkpoints/4", True),
        ("checkpoints/4", "latest", False),
    ],
)
def test_a_checkpoint_behind_a_link_resumes(folder, resume, place, selector, is_relative):
    run_dir = folder / "run"
    (run_dir / "checkpoints" / "best").symlink_to("4")
    before = (run_dir / "metrics.jsonl").read_text()
    link_away(run_dir / place, folder / "disk" / "moved", is_relative=is_relative)
    answer = resume("--resume", selector).passed()
    rates = re.search(r"SCH005.* step 5 changes from (\S+) .* to (\S+) \(this run's", answer.out)
    assert float(rates[1]) < float(rates[2]), "a finished run resumes for more steps"
    assert not list(folder.glob("run.old*"))
    assert (run_dir / "metrics.jsonl").read_text().startswith(before)
    assert steps_of(run_dir) == [0, 1, 2, 3, 4, 5, 6]


def test_checkpoints_on_a_disk_that_is_not_mounted_are_no_fresh_start(folder, resume):
    shutil.rmtree(folder / "run" / "checkpoints")
    (folder / "run" / "checkpoints").symlink_to("/nowhere/checkpoints")
    answer = resume("--resume", "auto")
    assert answer.code == 1
    assert "the link points to /nowhere/checkpoints, which is not a folder" in answer.out
    assert steps_of(folder / "run") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_restart", [False, True])
def test_the_trainer_starts_where_preflight_verified_and_nowhere_else(folder, resume, is_restart):
    assert resume("--resume", "auto", steps=8).code == 0
    run_dir = folder / "run"
    start = read_receipt(run_dir / "receipt.json").start
    assert (start.step, start.folder) == (4, str(run_dir / "checkpoints" / "4"))
    config = read_config(run_dir / "resolved.json")

    def begin():
        return choose_start(config, run_dir, is_restart=is_restart)

    if is_restart:
        assert begin().folder.name == "8"
    else:
        with pytest.raises(ProjectError, match=r"step 4 \(.*/4\) as the start .* found step 8 \(.*/8\)"):
            begin()
    shutil.rmtree(run_dir / "checkpoints")
    refusal_of(begin, "CKP007", "the trainer found no checkpoint")


def test_a_run_in_the_way_of_a_named_checkpoint_is_not_moved(folder, resume):
    shutil.copytree(folder / "run", folder / "other", symlinks=True)
    before = (folder / "run" / "metrics.jsonl").read_bytes()
    answer = resume("--resume", "other/checkpoints/4")
    assert answer.code == 1
    assert "CKP008" in answer.out
    assert (folder / "run" / "metrics.jsonl").read_bytes() == before
    assert not list(folder.glob("run.old*"))

    resume("--resume", "other/checkpoints/4", "--set", "trainer.overwrite_output_dir=true").passed()
    assert steps_of(folder / "run") == [5, 6]
    (kept,) = folder.glob("run.old*")
    assert (kept / "metrics.jsonl").read_bytes() == before


def test_an_overwritten_run_stays_on_the_disk_that_its_link_leads_to(folder, resume):
    link_away(folder / "run", folder / "disk" / "run", is_relative=False)
    resume("--resume", "never", "--set", "trainer.overwrite_output_dir=true", steps=2).passed()
    assert (folder / "run").is_symlink()
    assert steps_of(folder / "disk" / "run") == [0, 1, 2]
    (kept,) = (folder / "disk").glob("run.old*")
    assert steps_of(kept) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", {"earlier": 3, "restarts": "many", "trainer_pid": [1], "hostname": {}}),
        ("resolved.json", {"trainer": 3}),
    ],
)
def test_a_run_directory_with_values_of_other_types_resumes(folder, resume, name, content):
    path = folder / "run" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    resume("--resume", "auto").passed()
    assert steps_of(folder / "run") == [0, 1, 2, 3, 4, 5, 6]


def test_a_checkpoint_behind_a_link_is_removed_as_a_link(tmp_path):
    (tmp_path / "5").mkdir()
    link_away(tmp_path / "5", tmp_path / "disk" / "5", is_relative=False)
    remove(tmp_path / "5")
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]
    assert (tmp_path / "disk" / "5").is_dir()


def test_a_cache_that_is_removed_while_training_costs_nothing(folder, resume, monkeypatch):
    """Scratch disks are purged: the text is in memory maps by then, and checkpoints need the tokenizer."""
    first_step = TrainingLog.__call__

    def purge(log, trainer, report):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return first_step(log, trainer, report)

    monkeypatch.setattr(TrainingLog, "__call__", purge)
    for steps in (8, 10):  # the second launch prepares the text again, as a restart does
        resume("--resume", "auto", steps=steps).passed()
        assert not (folder / "cache").exists()
        assert (folder / "run" / "checkpoints" / str(steps) / "tokenizer.json").is_file()
    assert steps_of(folder / "run") == [*range(11)]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"schema_version": 2}, "checkpoint.json has schema version 2; this version reads 1"),
        ({"kind": "ternary"}, "checkpoint.json has kind ternary; this version reads sharded, whole"),
    ],
    ids=["version", "kind"],
)
def test_a_checkpoint_of_a_later_version_is_refused_by_name_and_stays(
    folder, resume, command, later, message
):
    """It counted as damaged: the run repeated its steps, and the checkpoint was renamed."""
    manifest = folder / "run" / "checkpoints" / "4" / FILE_NAME
    saved = manifest.read_text()
    content = json.loads(saved) | later
    del content["sha256"]
    manifest.write_text(json.dumps(content | {"sha256": _content_digest(content)}))
    for refused in (
        resume("--resume", "auto"),
        resume("--resume", "latest"),
        command("encode", "run", "text.txt", "--pooling", "avg", "-o", "out.npy"),
    ):
        output = refused.out + refused.err
        assert (refused.code, message in output) == (1, True)
        assert "use the version of neobert-launch that saved the checkpoint" in output
    assert not [*manifest.parents[1].glob(".*-4-*")], "neither set aside nor in quarantine"
    manifest.write_text(saved)
    assert resume("--resume", "auto").code == 0


def test_lost_lines_of_metrics_are_announced_once(folder, resume):
    metrics = folder / "run" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # steps 0 to 2, and a line that is cut short
    resume("--resume", "auto").passed()
    assert "steps 3 to 4 have no metrics: metrics.jsonl has lost lines since the save" in warnings_of(folder)
    assert steps_of(folder / "run") == [0, 1, 2, 5, 6]
    assert resume("--resume", "auto", steps=8).code == 0
    assert "have no metrics" not in warnings_of(folder)


def test_a_fifo_in_place_of_a_file_is_refused_before_the_trainer_waits_for_it(folder, resume):
    file = folder / "run" / "metrics.jsonl"
    kept = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    refused = resume("--resume", "auto")
    assert (refused.code, refused.err) == (
        1,
        f"error: {file}: the path is not a regular file [not-regular]\n"
        f"  = hint: remove {file}, or choose another trainer.output_dir\n",
    )
    file.unlink()
    file.write_bytes(kept)
    (folder / "run" / "predicted.jsonl.parts").mkdir()  # what a stopped `predict` leaves
    assert resume("--resume", "auto").code == 0


def test_rows_that_are_not_the_run_s_are_dropped(folder, resume):
    """A boolean or negative step, and a second row of a step, stayed and were chosen as the best."""
    metrics = folder / "run" / "metrics.jsonl"
    kept = read_lines(metrics)
    foreign = [{"step": step, "train/loss": -5.0, "eval/loss": 1e-5} for step in (True, -1, 2, 4, "3", 1.0)]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in [*kept, *foreign]))
    assert resume("--resume", "auto").code == 0
    assert steps_of(folder / "run") == [*range(7)]
    assert read_lines(metrics)[: len(kept)] == kept
    summary = json.loads((folder / "run" / "metrics.json").read_text())["metrics"]
    assert summary["train/loss"]["best"] > 0
    assert summary["eval/loss"]["best"] > 1
    assert "have no metrics" not in warnings_of(folder)


def warnings_of(folder: Path) -> str:
    """The messages of the warnings of the last session."""
    messages = read_lines(folder / "run" / "heartbeat_rank0.jsonl")[-1].get("warning_messages", {})
    return " ".join(messages.values())
