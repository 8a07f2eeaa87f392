"""Whether there is anything left to do for a run that is launched again, and what is read to know."""

import json
from pathlib import Path

import pytest

from launcher.rundir.directory import is_finished
from neobert.config import to_dict
from neobert.runfiles.checkpoint import manifest
from neobert.training.checkpoint.publish import publish
from profiles.registry import ResolvedRun, resolve_run

LAST = 700  # of cpu-demo


@pytest.fixture
def run() -> ResolvedRun:
    return resolve_run("cpu-demo", (), ("trainer.resume_from_checkpoint=auto",))


@pytest.fixture
def folder(run: ResolvedRun, tmp_path: Path) -> Path:
    """The directory of that run, without a last word."""
    (tmp_path / "resolved.json").write_text(json.dumps(to_dict(run.config)), encoding="utf-8")
    return tmp_path


@pytest.mark.child
@pytest.mark.usefixtures("warm")
def test_what_is_left_of_a_run_is_planned_and_announced(command, launch):
    options = ("-p", "cpu-demo", "--trainer.output_dir", "runs/a", "--guard.price_per_gpu_hour", "1000")
    resumed = (*options, "--trainer.resume_from_checkpoint", "auto")
    save(Path("runs/a"), LAST - 100)

    def work(*more: str) -> str:
        return next(line for line in command("plan", *more).out.splitlines() if " work " in line)

    assert " work                  700 steps x 1.02k = " in work(*options)
    assert " work                  100 of 700 steps, from step 600, x 1.02k = " in work(*resumed)
    continued = (*options, "--trainer.continue_from", "runs/a", "--trainer.output_dir", "runs/b")
    assert " 100 of 700 steps, from step 600, x " in work(*continued)
    Path("text.txt").write_text("a few words of a text\n\n" * 999, encoding="utf-8")
    text = ("--dataset.path", "text.txt", "--dataset.name", "null")
    whole_text, rest_of_text = (
        next(line.split() for line in command("plan", *each, *text).out.splitlines() if " epochs " in line)
        for each in (options, continued)
    )
    assert float(rest_of_text[2]) == pytest.approx(float(whole_text[2]) / 7, rel=1e-2)
    planned = command("plan", *resumed, "--output-format", "json").json
    whole, left = planned["plan"], planned["remaining"]
    assert (left["first_step"], left["steps"]) == (600, 100)
    for value, total in (("eta_s", "eta_s"), ("cost", "cost"), ("tokens", "total_tokens")):
        assert left[value]["value"] == pytest.approx(whole[total]["value"] / 7, rel=1e-3)

    points = command("train", *options, "--sweep", "seed=0", "--allow-unequal-tokens", "--dry-run").out
    save(Path("runs/a/seed=0"), LAST - 100)
    fewer = command("train", *options, "--sweep", "seed=0", "--allow-unequal-tokens", "--dry-run").out
    assert points.splitlines()[1].split()[1] == fewer.splitlines()[1].split()[1], "tokens of the point"
    assert points.splitlines()[2] != fewer.splitlines()[2], "time and cost of what is left"

    Path("runs/a/manifest.json").write_text("{}", encoding="utf-8")
    Path("runs/a/checkpoints/650").mkdir()
    assert " 50 of 700 steps, from step 650, x " in work(*resumed), "the name alone"
    head = launch("train", *resumed, fake="finish")
    assert "(100 of 700 steps, from step 600)" in " ".join(head.out.split()), head.err
    receipt = json.loads(Path("runs/a/receipt.json").read_text(encoding="utf-8"))
    assert receipt["config_digest"] == planned["config_hash"]


@pytest.mark.child
@pytest.mark.usefixtures("warm")
def test_a_run_goes_on_with_the_values_that_its_shipped_profile_had(command, launch):
    """The record is that of a version in which these two values were the profile's."""
    options = ("-p", "cpu-demo", "--trainer.output_dir", "runs/a", "--trainer.resume_from_checkpoint=auto")
    was = ("--optimizer.lr=7e-3", "--datacollator.mlm_probability=0.17")
    assert launch("train", *options, *was, fake="finish").code == 0
    folder = Path("runs/a")
    origins = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    for key in ("optimizer.lr", "datacollator.mlm_probability"):
        origins[key] = {"kind": "profile", "file": "/old/profiles/smoke/cpu-demo.yaml"}
    (folder / "provenance.json").write_text(json.dumps(origins), encoding="utf-8")

    again = launch("train", *options, fake="finish")
    keys = "datacollator.mlm_probability, optimizer.lr"
    note = f"continuing with the values of profile cpu-demo that this run began with: {keys}; "
    assert note in " ".join(again.err.split())
    assert "this run is already finished" in again.out, "the same run, to the last value"
    assert note in " ".join(command("plan", *options).err.split())
    shown = command("explain", "optimizer.lr", *options).out
    assert "0.007" in shown
    assert "profile or default as it was when the run began" in " ".join(shown.split())

    elsewhere = ("-p", "cpu-demo", "--trainer.output_dir", "runs/b")
    path = save(folder, 600)
    assert note in " ".join(
        command("plan", *elsewhere, f"--trainer.resume_from_checkpoint={path}").err.split()
    )
    for anew in (("--trainer.resume_from_checkpoint=never",), ("--trainer.output_dir", "runs/c")):
        assert "began with" not in command("plan", *options, *anew).err
    set_now = command("plan", *options, *was).err
    assert "began with" not in set_now, "all that differs is set by the user"


def save(folder: Path, step: int) -> Path:
    def write(to: Path) -> None:
        (to / "weights").write_bytes(b"w" * 100)

    folder.mkdir(parents=True, exist_ok=True)
    publish(folder / "checkpoints", step, "0" * 64, "2026-01-01T00:00:00+00:00", write)
    return folder / "checkpoints" / str(step)


def test_a_run_that_is_saved_to_its_end_is_finished(run, folder, monkeypatch):
    save(folder, LAST - 1)
    with monkeypatch.context() as patch:  # the preflight reads it after this, and it may be of many gibibytes
        patch.setattr(manifest, "file_sha256", lambda _: pytest.fail("a checkpoint was read"))
        assert not is_finished(run, folder)
    save(folder, LAST)
    assert is_finished(run, folder)


def test_a_run_of_an_earlier_version_is_finished_unless_it_set_a_removed_key(run, folder):
    save(folder, LAST)
    config = to_dict(run.config)
    for decay, is_the_same in ((None, True), (0.99, False)):
        stored = config | {"trainer": config["trainer"] | {"ema_decay": decay}}
        (folder / "resolved.json").write_text(json.dumps(stored), encoding="utf-8")
        assert is_finished(run, folder) is is_the_same


def test_the_same_command_in_another_working_directory_finds_its_finished_run(tmp_path):
    def resolved(text: str) -> ResolvedRun:
        keys = ("trainer.resume_from_checkpoint=auto", f"dataset.path={text}", "trainer.output_dir=/runs/a")
        return resolve_run("cpu-demo", (), keys)

    (tmp_path / "resolved.json").write_text(json.dumps(to_dict(resolved("notes.txt").config)), "utf-8")
    manifest = {"working_directory": str(tmp_path / "project")}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    save(tmp_path, LAST)
    assert is_finished(resolved("project/notes.txt"), tmp_path)
    assert is_finished(resolved(str(tmp_path / "project" / "notes.txt")), tmp_path)
    assert is_finished(resolved("notes.txt"), tmp_path)  # the folder was moved, or the text is another one
    assert not is_finished(resolved("other/notes.txt"), tmp_path)


@pytest.mark.parametrize("name", ["weights", "checkpoint.json"])
def test_a_damaged_last_checkpoint_says_nothing(name, run, folder):
    save(folder, LAST - 1)
    damaged = save(folder, LAST) / name
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    assert not is_finished(run, folder)


def test_a_checkpoint_under_another_name_does_not_end_a_run(run, folder):
    save(folder, LAST - 1).rename(folder / "checkpoints" / str(LAST))
    assert not is_finished(run, folder)
