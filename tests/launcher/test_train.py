"""`train` as people run it: in children, with a trainer that pretends, up to the exit code."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.commands import train
from launcher.run import launch_records
from launcher.rundir.records import read_json
from neobert.training.checkpoint.publish import publish

pytestmark = pytest.mark.e2e

TRAIN = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=run")
RUN = Path("run")
PATIENCE_S = 60


def wait_until_ready(child: subprocess.Popen[str], num_ranks: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE_S
    ready = [RUN / f"ready_{rank}" for rank in range(num_ranks)]
    while not (all(map(Path.exists, ready)) and read_json(RUN / "manifest.json").get("trainer_pid")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("warm")
def test_a_run_from_start_to_finish_and_again(run_child, launch):
    answer = run_child(*TRAIN, "--resume", "auto", fake="finish").passed()
    lines = answer.out.splitlines()
    assert lines[0].startswith("PASS")
    assert lines.index(next(line for line in lines if line.startswith("run directory: "))) < 8
    assert "step 2/3  loss 7.0000  eval loss 6.0000  1k tokens/s  eta 1 s  memory -  unsaved 30 s" in lines
    assert "finished at step 3 of 3, 300 tokens (exit 0)" in lines
    assert "eval loss: 8.0000 -> 5.0000" in lines
    assert any(line.startswith("checkpoint: ") and line.endswith("run/checkpoints/3") for line in lines)
    assert (RUN / "logs" / "rank_0.log").read_text(encoding="utf-8").startswith("rank - of 1 trains")
    again = launch(*TRAIN, "--resume", "auto", fake="crash").passed()
    assert "this run is already finished" in again.out


def test_a_run_that_lacks_only_its_last_word_is_finished(launch):
    launch(*TRAIN, fake="fail")
    publish(RUN / "checkpoints", 700, "0" * 64, "2026-01-01T00:00:00+00:00", lambda folder: None)
    (RUN / "outcome.json").unlink()
    answer = launch(*TRAIN, "--resume", "auto", fake="crash").passed()
    assert "this run is already finished" in answer.out
    assert "finished at step" in answer.out


def test_a_run_that_was_stopped_in_its_last_evaluation_evaluates(launch):
    def save(folder):
        (folder / "trainer_state").mkdir()
        (folder / "trainer_state" / "state.json").write_text('{"row": {"step": 700}}')

    launch(*TRAIN, fake="fail")
    publish(RUN / "checkpoints", 700, "0" * 64, "2026-01-01T00:00:00+00:00", save)
    answer = launch(*TRAIN, "--resume", "auto", fake="finish").passed()
    assert "this run is already finished" not in answer.out


@pytest.mark.parametrize(
    ("other", "checks", "ending"),
    [("finish", 2, "this run is already finished"), ("fail", 3, "finished at step")],
)
def test_a_run_that_another_launch_creates_and_ends_during_the_checks_is_gone_on_with(
    launch, monkeypatch, other, checks, ending
):
    """A sweep that was started twice waited for the run, and then failed because the run was there."""
    right, checked = train._run_checks, []

    def examine(*arguments: Any) -> Any:
        examination = right(*arguments)
        checked.append(examination)
        if len(checked) == 1:
            launch(*TRAIN, fake=other)
            monkeypatch.setenv("FAKE_TRAINER", "finish")
        return examination

    monkeypatch.setattr(train, "_run_checks", examine)
    answer = launch(*TRAIN, "--resume", "auto", fake="finish").passed()
    assert len(checked) == checks, "an unfinished run is checked again"
    assert ending in answer.out


def test_a_launch_that_is_killed_while_it_writes_leaves_no_earlier_outcome(launch, monkeypatch):
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    longer = (*TRAIN, "--resume", "auto", "--trainer.max_steps", "1000")
    with monkeypatch.context() as patched:
        patched.setattr(launch_records, "make_folder", killed)
        launch(*longer, fake="finish")
    assert launch(*TRAIN, "--resume", "auto", fake="finish").code == 0  # in the folder with a config alone
    with monkeypatch.context() as patched:
        patched.setattr(launch_records, "write_manifest", killed)
        launch(*longer, fake="finish")
    assert "this run is already finished" not in launch(*longer, fake="finish").out


def test_a_finished_run_goes_on_from_a_checkpoint_that_is_named(launch):
    launch(*TRAIN, fake="finish")
    publish(RUN / "checkpoints", 1, "0" * 64, "2026-01-01T00:00:00+00:00", lambda folder: None)
    answer = launch(*TRAIN, "--resume", str(RUN / "checkpoints" / "1"), fake="finish").passed()
    assert "this run is already finished" not in answer.out
    assert answer.out.startswith("PASS")
    assert "\nresuming from step 1: " in answer.out


def test_overwriting_moves_the_old_run_aside(launch):
    launch(*TRAIN, fake="fail")
    answer = launch(*TRAIN, "--trainer.overwrite_output_dir", "true", fake="finish").passed()
    (old,) = Path().glob("run.old-*")
    assert (old / "metrics.jsonl").is_file()
    assert f"contained another run: its files were moved to {old.absolute()}" in answer.err


def test_another_run_s_directory_is_not_gone_on_with(launch):
    launch(*TRAIN, fake="fail")
    same = launch(*TRAIN, "--resume", "auto", fake="fail")
    assert same.code == 93
    assert not list(Path().glob("run.old-*"))
    other = launch(*TRAIN, "--resume", "auto", "--model.hidden_size", "96", fake="finish").passed()
    (old,) = Path().glob("run.old-*")
    assert (old / "metrics.jsonl").is_file()
    assert "no checkpoint to resume from and a different config: starting at step 0" in " ".join(
        other.err.split()
    )
    assert "moved to" not in same.err


@pytest.mark.parametrize(
    ("behaviour", "code", "says"),
    [
        ("error", 1, "corpus.txt: no text is left [DAT004]\n  = hint: check the source"),
        ("fail", 93, "the loss is not finite; same failure twice at step 1"),
        ("refuse", 93, "not retrying"),
        ("crash", 4, "RuntimeError: a fault that nobody foresaw"),
        ("killed", 4, "killed by SIGKILL"),
    ],
)
def test_an_end_is_one_message_and_its_code(behaviour, code, says, launch):
    answer = launch(*TRAIN, fake=behaviour)
    assert answer.code == code
    assert says in answer.out
    assert "Traceback" not in answer.out + answer.err


def test_an_end_is_one_object_in_json(launch):
    report = launch(*TRAIN, "--output-format", "json", fake="crash")
    assert (report.code, report.json["exit_code"], report.json["status"]) == (4, 4, "failed")


@pytest.mark.parametrize(
    ("number", "received", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGHUP, signal.SIGTERM, 75),
    ],
)
def test_signals_are_forwarded_and_their_codes_returned(number, received, code, start_child):
    child = start_child(*TRAIN, fake="stop", preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    wait_until_ready(child)
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == code, err
    assert (RUN / "received").read_text(encoding="utf-8") == str(int(received))
    assert "next: neobert-launch train --resume auto -p cpu-demo" in out
    assert "Traceback" not in err


def test_a_launch_under_nohup_outlives_its_terminal(start_child):
    child = start_child(*TRAIN, fake="stop", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_until_ready(child)
    child.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert child.poll() is None
    assert not (RUN / "received").exists()


def test_a_killed_launcher_takes_its_trainer_along_and_the_directory_is_free(start_child, launch):
    child = start_child(*TRAIN, "--resume", "auto", fake="stop")
    wait_until_ready(child)
    child.send_signal(signal.SIGKILL)
    child.wait()
    launch(*TRAIN, "--resume", "auto", fake="finish").passed()
    # The kernel sends the signal of a parent's death for each thread of the launcher that dies.
    assert {*(RUN / "received").read_text(encoding="utf-8").split()} == {str(int(signal.SIGTERM))}
    manifest = json.loads((RUN / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["earlier"][0]["outcome"]["status"] == "preempted"


def test_a_refused_launch_starts_and_writes_nothing(launch):
    answer = launch(*TRAIN, "--set", "dataset.path=absent.txt", "--set", "dataset.name=null", fake="finish")
    assert answer.code == 1
    assert "DAT001" in answer.out
    assert not RUN.exists()
    assert not Path(".neobert").exists()


def test_a_dry_run_prints_the_command_and_writes_nothing(launch):
    answer = launch(
        "train", "-p", "cpu-demo", "--set", "trainer.output_dir=a run", "--dry-run", fake=""
    ).passed()
    assert f"-m fake_trainer '{Path.cwd()}/a run/resolved.json'" in answer.out
    assert list(Path().iterdir()) == []
    refused = launch(*TRAIN, "--dry-run", "--trainer.save_step", "5", fake="")
    assert refused.code == 2


def test_a_dry_run_refuses_an_occupied_folder_as_train_does(command, tmp_path):
    words = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=run", "--dry-run")
    saved = tmp_path / "run" / "checkpoints" / "20"
    saved.mkdir(parents=True)
    for more, code, finding in (
        ((), 1, "CKP008"),
        (("--trainer.overwrite_output_dir", "true"), 0, ""),
        (("--resume", "auto"), 1, "CKP007"),
        (
            ("--trainer.output_dir", "/proc/run"),
            1,
            "/proc/run cannot be created: no file can be created in /proc",
        ),
        (("--node-rank", "1", "--nnodes", "2", "--rdzv-endpoint", "a:1"), 0, ""),
    ):
        answer = command(*words, *more)
        is_refused = "train would reject this run; no run was written" in answer.out
        assert (answer.code, finding in answer.out, is_refused) == (code, True, bool(code)), answer.out
        assert ("would run:" in answer.out) is not bool(code)
    assert sorted(tmp_path.rglob("*")) == [saved.parents[1], saved.parent, saved]


@pytest.mark.usefixtures("warm")
def test_two_processes_under_torchrun_have_a_log_each_and_get_its_signal(start_child):
    child = start_child(*TRAIN, "--nproc-per-node", "2", fake="stop")
    wait_until_ready(child, num_ranks=2)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 75, err
    for rank in range(2):
        log = (RUN / "logs" / f"rank_{rank}.log").read_text(encoding="utf-8")
        assert f"rank {rank} of 2 trains" in log
    resolved = json.loads((RUN / "resolved.json").read_text(encoding="utf-8"))
    assert resolved["distributed"]["nproc_per_node"] == 2


def test_restarts_are_told_and_recorded(launch, command):
    answer = launch(*TRAIN, "--watchdog.max_restarts", "2", fake="killed")
    assert answer.code == 4
    assert answer.err.count("rank 0 was killed by SIGKILL") == 2
    assert "(restart 2 of 2)" in answer.err
    assert "failed after step 1 of" in answer.out
    assert "; its last heartbeat is of step 1; no new checkpoint after 2 restarts" in answer.out
    assert "restarts: 2, see manifest.json" in answer.out
    recorded = json.loads((RUN / "manifest.json").read_text(encoding="utf-8"))["restarts"]
    assert [(each["kind"], each["step"], each["from"]) for each in recorded] == [("lost", 1, "the start")] * 2
    assert json.loads((RUN / "outcome.json").read_text(encoding="utf-8"))["restarts"] == 2
    assert command("status", RUN, "--output-format", "json").json["restarts"] == 2
    assert "restarts 2" in command("status", RUN).out


def test_a_trainer_that_is_killed_before_its_first_step_has_no_last_step(launch):
    answer = launch(*TRAIN, "--watchdog.max_restarts", "0", fake="killed early")
    assert "rank 0 was killed by SIGKILL" in answer.out
    assert "last heartbeat" not in answer.out


def test_a_quiet_run_prints_its_summary_alone(launch):
    answer = launch(*TRAIN, "-q", fake="finish").passed()
    assert answer.out.startswith("finished at step 3 of 3")


def test_a_verbose_run_prints_reasons_and_every_check(launch):
    shown = launch(*TRAIN, "--verbose", fake="finish").out
    assert "hours x GPUs x guard.price_per_gpu_hour" in shown
    assert "CKP001" in shown
