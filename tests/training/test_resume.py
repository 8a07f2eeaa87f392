"""A run that was stopped anywhere and resumed is, to the last bit, the run that was never stopped."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from launcher.run.summary import summarize_run, summary_text
from neobert.config.schema import TrainerConfig
from neobert.data.batches.streams import TrainStream
from neobert.data.sources import text_files
from neobert.runfiles.checkpoint import folders
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from neobert.training.checkpoint import publish, retention
from neobert.training.loop import session, steps
from neobert.training.loop import task as built_task
from tests.killed_run import Killed, kill, struck
from tests.refusals import refusal_of


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_and_hang():
    """Ask for the stop, then wait for data that never comes."""
    terminate()
    time.sleep(30)


def terminate_twice():
    terminate()
    terminate()


@pytest.fixture
def struck_run(run):
    """Run with a strike at the n-th call of a function; return how the session ended, None for a kill."""

    def strike_run(run_dir, owner, name, number, strike):
        with struck(owner, name, number, strike):
            try:
                return run(run_dir)
            except Killed:
                return None

    return strike_run


STEP = (steps, "run_step")
DATA = (TrainStream, "__next__")
EVALUATION = (steps, "_next_batch")
BACKWARD = (steps, "accumulate")
UPDATE = (steps, "update")
SAVE = (built_task, "write_hf_folder")
PUBLISH = (publish, "seal_checkpoint")
LATEST = (publish, "point_link")


@pytest.mark.parametrize(
    ("place", "number", "step", "strike"),
    [
        (EVALUATION, 0, 0, terminate),
        (EVALUATION, 5, 4, terminate_twice),
        (DATA, 13, 6, terminate_and_hang),
        (DATA, 14, 7, terminate_twice),
    ],
)
def test_a_stop_while_waiting_saves_and_leaves(
    make_run, run, struck_run, exact, outcome, uninterrupted, place, number, step, strike
):
    run_dir = make_run()
    assert struck_run(run_dir, *place, number, strike) == 75
    assert outcome(run_dir) == {"status": "preempted", "exit_code": 75, "step": step, "message": ""}
    assert step in folders.checkpoint_steps(run_dir / "checkpoints")
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted


@pytest.mark.parametrize(
    ("place", "number"),
    [(STEP, 0), (BACKWARD, 3), (UPDATE, 3), (SAVE, 0), (PUBLISH, 1), (LATEST, 0)],
)
def test_a_stop_at_work_ends_at_the_next_boundary(
    make_run, run, struck_run, exact, outcome, uninterrupted, place, number
):
    run_dir = make_run()
    assert struck_run(run_dir, *place, number, terminate) == 75
    ended = outcome(run_dir)["step"]
    assert folders.find_checkpoint(run_dir / "checkpoints", "auto")[1].step == ended
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (EVALUATION, 0),
        (UPDATE, 7),
        (EVALUATION, 11),
        (STEP, 11),
    ],
)
def test_a_kill_costs_what_was_not_saved_and_nothing_else(
    make_run, run, struck_run, exact, uninterrupted, place, number
):
    run_dir = make_run()
    assert struck_run(run_dir, *place, number, kill) is None
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted
    assert not list((run_dir / "checkpoints").glob(".tmp-*"))


def test_stopped_and_killed_in_turn(make_run, run, struck_run, exact, beats, uninterrupted):
    run_dir = make_run(trainer={"save_steps": 2})
    assert struck_run(run_dir, *EVALUATION, 1, terminate) == 75
    assert struck_run(run_dir, *STEP, 3, kill) is None
    assert struck_run(run_dir, *EVALUATION, 0, terminate) == 75
    assert struck_run(run_dir, *EVALUATION, 0, terminate) == 75
    assert struck_run(run_dir, *STEP, 4, kill) is None
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted
    seen = [beat["seq"] for beat in beats(run_dir)]
    assert seen == sorted(set(seen))


def test_an_interrupt_from_the_keyboard_has_its_own_exit_code(make_run, struck_run, outcome):
    run_dir = make_run()
    assert struck_run(run_dir, *STEP, 3, lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
    assert outcome(run_dir)["status"] == "interrupted"


def test_a_stop_while_text_is_read_is_no_fault_of_the_text(make_run, struck_run, outcome, tmp_path):
    run_dir = make_run(dataset={"cache_dir": str(tmp_path / "cache")})
    assert struck_run(run_dir, text_files, "replace_surrogates", 20, terminate) == 75
    assert outcome(run_dir)["status"] == "preempted"
    assert not list((tmp_path / "cache").glob(".*.partial"))


def test_a_cadence_that_moves_onto_an_open_line_has_nothing_to_add_to_it(make_run, run, struck_run, metrics):
    run_dir = make_run()
    assert struck_run(run_dir, session, "evaluate", 1, terminate) == 75
    make_run(trainer={"logging_steps": 2})
    assert run(run_dir) == 0
    lines = {line["step"]: line for line in metrics(run_dir)}
    assert "eval/loss" in lines[4]
    assert "train/loss" not in lines[4]
    assert "train/loss" in lines[6]


@pytest.mark.parametrize(("number", "step"), [(6, 4), (16, 12)])
def test_a_checkpoint_that_a_stop_left_unjudged_is_judged_by_the_next_session(
    make_run, run, struck_run, metrics, number, step
):
    is_first_best = {4: True, 12: False}[step]  # the loss falls all the way
    trainer = {"save_steps": 4, "metric_for_best_model": "eval/loss", "greater_is_better": is_first_best}
    run_dir = make_run(trainer={**trainer, "save_total_limit": 2})
    root = run_dir / "checkpoints"
    assert struck_run(run_dir, *EVALUATION, number, terminate) == 75
    assert folders.find_checkpoint(root, "auto")[1].step == step
    assert folders.find_checkpoint(root, "auto")[1].metrics == {}
    assert run(run_dir) == 0
    reported = {line["step"]: line["eval/loss"] for line in metrics(run_dir) if "eval/loss" in line}
    assert verify_checkpoint(root / str(step)).metrics["eval/loss"] == reported[step]
    assert folders.follow_pointer(root, "best").name == str(step)
    assert step in folders.checkpoint_steps(root)


@pytest.mark.parametrize("refusing", ["write_text", "replace"])
def test_a_verdict_that_does_not_fit_on_the_disk_costs_no_checkpoint(tmp_path, monkeypatch, caplog, refusing):
    publish.publish(tmp_path, 5, "digest", "now", lambda folder: (folder / "w").write_bytes(b"w"))
    before = sorted((tmp_path / "5").iterdir())

    def full(path, *_args, **_kwargs):
        assert path.name == ".checkpoint.json"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, refusing, full)
    retention.record_metrics(tmp_path, TrainerConfig(), 5, {"eval/loss": 1.0})
    assert "metrics were not added to checkpoint 5" in caplog.text
    assert sorted((tmp_path / "5").iterdir()) == before
    assert verify_checkpoint(tmp_path / "5").metrics == {}


def test_a_kill_on_the_way_back_leaves_no_checkpoint_without_its_history(
    source, make_run, struck_run, metrics
):
    run_dir = make_run("source", trainer={"resume_from_checkpoint": str(source / "checkpoints" / "5")})
    assert struck_run(run_dir, session, "set_aside_after", 0, kill) is None
    newest = folders.find_checkpoint(run_dir / "checkpoints", "auto")[1].step
    assert metrics(run_dir)[-1]["step"] == newest == 12


def test_a_torn_history_is_mended(make_run, run, struck_run, exact, uninterrupted):
    run_dir = make_run()
    struck_run(run_dir, *STEP, 9, kill)
    for name in ("metrics.jsonl", "heartbeat_rank0.jsonl"):
        with (run_dir / name).open("ab") as file:
            file.write(b'{"step": 9, "train/lo')
    run(run_dir)
    assert exact(run_dir) == uninterrupted


def test_an_earlier_step_may_be_named(source, make_run, run, exact, uninterrupted):
    run_dir = make_run("source", trainer={"resume_from_checkpoint": str(source / "checkpoints" / "5")})
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted
    kept = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert kept == {"5", "10", "12", "latest", ".superseded-12-0"}


def test_what_was_set_aside_is_gone_on_from_and_has_its_place_again(source, make_run, run, struck_run):
    root = source / "checkpoints"
    run_dir = make_run("source", trainer={"resume_from_checkpoint": str(root / "5")})
    assert struck_run(run_dir, *STEP, 1, kill) is None
    assert folders.checkpoint_steps(root) == [5]
    make_run("source", trainer={"resume_from_checkpoint": str(root / ".superseded-12-0")})
    assert run(run_dir) == 0
    assert folders.find_checkpoint(root, "auto")[1].step == 12
    assert folders.find_checkpoint(root, "latest")[0].name == "12"


def test_a_checkpoint_of_another_directory_is_gone_on_from(make_run, run, struck_run, exact, uninterrupted):
    source = make_run("source")
    struck_run(source, *STEP, 6, terminate)
    run_dir = make_run(trainer={"resume_from_checkpoint": str(source / "checkpoints" / "latest")})
    assert struck_run(run_dir, *DATA, 0, terminate) == 75
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [6]
    make_run()
    assert run(run_dir) == 0
    assert exact(run_dir) == [line for line in uninterrupted if line["step"] > 6]
    assert folders.checkpoint_steps(source / "checkpoints") == [5, 6]


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoints"])
def test_never_refuses_what_another_run_left(source, make_run, run, left):
    run_dir = make_run("source", trainer={"resume_from_checkpoint": "never"})
    for name in {"metrics.jsonl", "checkpoints"} - {left}:
        path = run_dir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    outcome = (run_dir / "outcome.json").read_bytes()
    assert refusal_of(run, "CKP008", "already holds a run", run_dir).exit_code == 1
    assert (run_dir / "outcome.json").read_bytes() == outcome


def test_other_text_under_the_same_name_is_refused(make_run, run, struck_run, corpus, tmp_path):
    text = tmp_path / "text.jsonl"
    shutil.copy(corpus["path"], text)
    run_dir = make_run(dataset={"path": str(text)})
    struck_run(run_dir, *STEP, 6, terminate)
    with text.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"text": "one more document for the text"}))
    make_run(
        dataset={"path": str(text)}, trainer={"resume_from_checkpoint": str(run_dir / "checkpoints" / "5")}
    )
    before = {path.name for path in (run_dir / "checkpoints").iterdir()}
    refusal_of(run, "CKP007", "data fingerprint", run_dir)
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == before


def test_sums_that_may_round_differently_are_said(make_run, run, struck_run, caplog, monkeypatch):
    run_dir = make_run()
    struck_run(run_dir, *STEP, 6, terminate)
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert run(run_dir) == 0
    assert f"the number of threads changed from {threads} to {threads + 1}" in caplog.text
    assert "results may differ" in caplog.text


def test_a_missing_history_does_not_stop_a_resume(make_run, run, struck_run, exact, uninterrupted):
    run_dir = make_run()
    struck_run(run_dir, *STEP, 6, terminate)
    Path(run_dir / "metrics.jsonl").unlink()
    run(run_dir)
    assert exact(run_dir) == [line for line in uninterrupted if line["step"] > 6]


def test_setting_up_counts_as_no_training(make_run, struck_run, metrics, monkeypatch):
    hours_of_setting_up, clock = [], time.perf_counter
    monkeypatch.setattr("time.perf_counter", lambda: clock() + 3600 * len(hours_of_setting_up))
    run_dir = make_run(trainer={"logging_steps": 1})
    assert struck_run(run_dir, session, "set_aside_after", 0, lambda: hours_of_setting_up.append(1)) == 0
    first = metrics(run_dir)[1]
    assert first["train/tokens_total"] / first["train/tokens_per_sec"] < 3600


def test_a_killed_run_on_two_corpora_resumes_to_the_same_losses(
    make_run, run, struck_run, exact, metrics, corpus
):
    """One of them is read several times over; the kill falls between two saves."""
    halves = ({"train_split": "train[:40]", "weight": 3.0}, {"train_split": "train[40:]", "weight": 1.0})
    mixture = [{"path": corpus["path"]} | half for half in halves]
    dataset = {"path": None, "mixture": mixture}
    whole, killed = make_run("whole", dataset=dataset), make_run("killed", dataset=dataset)
    assert run(whole) == 0
    assert struck_run(killed, *STEP, 8, kill) is None
    assert run(killed) == 0
    assert exact(killed) == exact(whole)
    assert folders.find_checkpoint(killed / "checkpoints", "auto")[1].step == 12
    names = [f"data/share/text.jsonl {number}" for number in (1, 2)]
    drawn = [[line[name] for name in names] for line in metrics(killed) if "train/loss" in line]
    assert drawn == [[line[name] for name in names] for line in metrics(whole) if "train/loss" in line]
    assert drawn[-1] == pytest.approx([0.75, 0.25], abs=0.1)
    summary = summarize_run(killed, 0, (), None)
    assert list(summary.corpus_shares.values()) == drawn[-1]
    assert re.search(r"tokens by corpus: text.jsonl 1 7\d.\d%, text.jsonl 2 2\d.\d%", summary_text(summary))
