"""What goes wrong while training stops the run with one message, and costs no checkpoint."""

import errno
import json
import os
import resource
import signal
from contextlib import contextmanager

import pytest
import torch

from neobert.data.batches.streams import TrainStream
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint import folders
from neobert.training.checkpoint import publish
from neobert.training.loop import session, steps
from neobert.training.loop import task as built_task
from neobert.training.telemetry.jsonl_writer import JsonlWriter
from tests.killed_run import change_losses
from tests.refusals import refusal_of


def infinite_gradient(loss):
    loss.register_hook(lambda gradient: gradient * float("inf"))
    return loss


@pytest.mark.parametrize(
    "change", [lambda loss: loss * float("nan"), lambda loss: loss + float("inf"), infinite_gradient]
)
def test_a_loss_or_gradient_that_is_no_number_stops_before_the_optimizer(
    make_run, run, monkeypatch, outcome, beats, change
):
    run_dir = make_run()
    change_losses(monkeypatch, [13], change)  # the second microbatch of step 7
    assert refusal_of(run, "NAN001", "step 7 is not finite", run_dir).exit_code == 4
    ended = outcome(run_dir)
    assert (ended["status"], ended["exit_code"], ended["step"]) == ("failed", 4, 6)
    assert beats(run_dir)[-1]["phase"] == "failed"
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [5]
    folders.find_checkpoint(run_dir / "checkpoints", "latest")

    report = json.loads((run_dir / "nonfinite_rank0.json").read_text(encoding="utf-8"))
    assert report["step"] == 7
    assert [bool(batch["sample_ids"]) for batch in report["microbatches"]] == [True, True]
    assert report["microbatches"][1]["next"]["index"] > report["microbatches"][0]["next"]["index"]


def test_weights_that_are_no_numbers_are_never_saved(make_run, run, monkeypatch):
    run_dir = make_run()
    real = steps.update

    def corrupting(trainer, *rest):
        real(trainer, *rest)
        if trainer.progress.step + 1 == 10:
            with torch.no_grad():
                trainer.task.model.decoder.weight[3, 3] = float("nan")

    monkeypatch.setattr(steps, "update", corrupting)
    assert refusal_of(run, "NAN001", "weights are not finite after step 10", run_dir).exit_code == 4
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [5]


@contextmanager
def files_of_at_most(num_bytes):
    """Have the kernel refuse to write more into one file, as a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_save_that_the_kernel_refuses_leaves_the_old_checkpoints(make_run, run, monkeypatch, outcome):
    run_dir = make_run()
    real, calls = built_task.write_hf_folder, iter(range(10))

    def refused(*args):
        if next(calls) == 0:
            return real(*args)
        with files_of_at_most(8192):
            return real(*args)

    monkeypatch.setattr(built_task, "write_hf_folder", refused)
    error = refusal_of(run, "CKP004", "the checkpoint of step 10 could not be written", run_dir)
    assert error.exit_code == 4
    assert "free disk space" in error.hint
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"5", "latest"}
    assert folders.find_checkpoint(run_dir / "checkpoints", "auto")[1].step == 5
    assert outcome(run_dir)["exit_code"] == 4


def test_a_line_that_does_not_fit_on_the_disk_fails_the_run(make_run, run, monkeypatch, outcome):
    run_dir = make_run()
    real, calls = JsonlWriter.append, iter(range(1000))

    def short(self, row):
        if "train/loss" in row and next(calls) == 1:
            with files_of_at_most(os.fstat(self._file.fileno()).st_size + 10):
                return real(self, row)
        return real(self, row)

    monkeypatch.setattr(JsonlWriter, "append", short)
    with pytest.raises(OSError, match="No space left on device"):
        run(run_dir)
    assert outcome(run_dir)["status"] == "failed"
    monkeypatch.undo()
    assert run(run_dir) == 0


@pytest.mark.parametrize(("requested", "status"), [(False, ("finished", 0)), (True, ("preempted", 75))])
def test_a_disk_that_is_full_once_all_is_saved_costs_the_last_words_and_not_the_run(
    make_run, run, monkeypatch, caplog, requested, status
):
    run_dir = make_run(trainer={"async_save": False})  # no line is written between the save and the stop
    real_append, real_seal, is_full = JsonlWriter.append, publish.seal_checkpoint, []

    def append(self, row):
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_append(self, row)

    def seal(folder, step, *rest):
        real_seal(folder, step, *rest)
        if requested:
            os.kill(os.getpid(), signal.SIGTERM)
        is_full.extend([True] * (requested or step == 12))

    def write_outcome(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JsonlWriter, "append", append)
    monkeypatch.setattr(publish, "seal_checkpoint", seal)
    monkeypatch.setattr(session, "write_outcome", write_outcome)
    assert run(run_dir) == status[1]
    saved = folders.find_checkpoint(run_dir / "checkpoints", "latest")[1].step
    assert (saved == 12) is not requested
    assert "the heartbeat could not be written" in caplog.text
    assert f"outcome.json could not be written ([Errno 28] No space left on device); the run {status[0]}" in (
        caplog.text
    )


def test_data_that_fails_in_the_middle_fails_the_run(make_run, run, monkeypatch, outcome):
    run_dir = make_run()
    real, calls = TrainStream.__next__, iter(range(100))

    def failing(self):
        if next(calls) == 9:
            raise ProjectError("DAT010", "reading failed", exit_code=4)
        return real(self)

    monkeypatch.setattr(TrainStream, "__next__", failing)
    with pytest.raises(ProjectError, match="reading failed"):
        run(run_dir)
    assert outcome(run_dir)["message"] == "reading failed"


def test_a_label_outside_the_vocabulary_is_found_before_the_model_sees_it(make_run, run, monkeypatch):
    run_dir = make_run()
    real = TrainStream.__next__

    def corrupt(self):
        batch = real(self)
        batch.labels[0] = 128
        return batch

    monkeypatch.setattr(TrainStream, "__next__", corrupt)
    with pytest.raises(IndexError, match="label 128 is outside the vocabulary of 128 tokens"):
        run(run_dir)
