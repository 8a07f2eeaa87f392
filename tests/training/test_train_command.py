"""The trainer as a process of its own: real signals, real kills, two ranks, and its exit codes."""

import errno
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from neobert import train
from neobert.errors import ERROR_FILE_ENV, EXIT_TRAINING_FAILED, read_error_file
from neobert.train import unexpected_error

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]


@pytest.fixture
def start():
    """Start a trainer; whatever is left of it when the test ends is killed."""
    children = []

    def start_child(run_dir, *launcher, **environment):
        command = [sys.executable, *launcher, "-m", "neobert.train", str(run_dir / "resolved.json")]
        with (run_dir / "log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )
        children.append(child)
        return child

    yield start_child
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.fixture
def finish(start):
    """Run a trainer to its end; return its exit code and what it said."""

    def run_to_end(run_dir, *launcher, **environment):
        code = start(run_dir, *launcher, **environment).wait(timeout=200)
        return code, (run_dir / "log").read_text(encoding="utf-8")

    return run_to_end


def test_two_ranks_are_one_with_twice_the_microbatches(make_run, run, finish, exact, metrics, beats):
    alone = make_run("alone", trainer={"gradient_accumulation_steps": 4})
    both = make_run("both", trainer={"gradient_accumulation_steps": 2}, distributed={"nproc_per_node": 2})
    run(alone)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, log = finish(both, *torchrun)
    assert code == 0, log
    for left, right in zip(exact(alone), exact(both), strict=True):
        assert left == pytest.approx(right, rel=1e-5)
    assert [beat["rank"] for beat in (beats(both)[0], beats(both, 1)[0])] == [0, 1]
    checked = json.loads((both / "receipt.json").read_text(encoding="utf-8"))["config_digest"]
    assert {beat["config_digest"] for beat in (*beats(both), *beats(both, 1))} == {checked}
    assert log.count(f"config {checked[:12]}") == 2
    saved = both / "checkpoints" / "12" / "trainer_state"
    generators = {path.name: path.read_bytes() for path in saved.glob("rng_*")}
    assert generators.keys() == {"rng_rank0.safetensors", "rng_rank1.safetensors"}
    assert len(set(generators.values())) == 2  # else the ranks would drop the same units

    # The processes may be split anew: the steps hold the same microbatches.
    make_run("both", trainer={"gradient_accumulation_steps": 4, "max_steps": 14})
    run(both)
    assert metrics(both)[-1]["step"] == 14


def test_of_two_ranks_the_one_that_failed_first_has_the_word(make_run, finish, outcome, tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a b c"}\n' * 14, encoding="utf-8")
    dataset = {"path": str(text), "cache_dir": str(tmp_path / "cache")}
    run_dir = make_run(distributed={"nproc_per_node": 2}, dataset=dataset)
    _, log = finish(run_dir, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert outcome(run_dir)["exit_code"] == 1, log
    assert "one microbatch holds" in outcome(run_dir)["message"]


@pytest.mark.parametrize(
    ("spoil", "code", "exit_code", "named"),
    [
        (lambda run_dir: (run_dir / "receipt.json").unlink(), "RCP001", 1, "there is no receipt"),
        (lambda run_dir: edit(run_dir, "seed", 7), "RCP001", 1, "issued for config"),
        (lambda run_dir: edit(run_dir, "sead", 7), "CFG001", 1, "sead"),
        (lambda run_dir: (run_dir / "resolved.json").unlink(), "CFG011", 2, "cannot be read"),
    ],
)
def test_a_refusal_is_one_message_with_its_exit_code(
    make_run, finish, tmp_path, spoil, code, exit_code, named
):
    run_dir = make_run()
    spoil(run_dir)
    left = tmp_path / "error.json"
    assert (got := finish(run_dir, **{ERROR_FILE_ENV: str(left)}))[0] == exit_code, got
    assert named in got[1]
    assert "Traceback" not in got[1]
    error = read_error_file(left)
    assert (error.code, error.exit_code) == (code, exit_code)
    assert not (run_dir / "outcome.json").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_under_log_and_error_file_keeps_the_exit_code():
    program = (
        "import sys\nfrom neobert.errors import ProjectError\n"
        "from neobert.train import exit_process, report_error\n"
        "error = ProjectError('CKP004', 'the disk is full', exit_code=93)\n"
        "sys.stdout.write('lost'); exit_process(report_error(error))"
    )
    with open("/dev/full", "w", encoding="utf-8") as full:
        child = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {ERROR_FILE_ENV: "/dev/full", "PYTHONUNBUFFERED": ""},
            check=False,
        )
    assert child.returncode == 93, child.stderr


def test_a_full_disk_is_named_and_no_fault_of_the_trainer(tmp_path):
    error = unexpected_error(
        OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl"), tmp_path
    )
    assert (error.code, error.place, error.exit_code) == ("CKP004", "runs/a/metrics.jsonl", 4)
    assert unexpected_error(OSError(errno.EIO, "Input/output error"), tmp_path).code == "TRN001"


def test_the_way_back_names_the_newest_checkpoint_where_there_is_one(tmp_path):
    assert "no checkpoint was written" in unexpected_error(ValueError("x"), tmp_path).hint
    (tmp_path / "checkpoints" / "40").mkdir(parents=True)
    hint = unexpected_error(ValueError("x"), tmp_path).hint
    assert hint.endswith("resume with --resume auto: the newest checkpoint is step 40")


def edit(run_dir, key, value):
    path = run_dir / "resolved.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {key: value}), encoding="utf-8")


def test_a_rank_that_lost_its_connection_lets_the_lost_rank_be_reported_first(tmp_path, monkeypatch):
    left, waits = tmp_path / "error.json", []

    def lose_the_other_rank(*_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1428")

    monkeypatch.setenv(ERROR_FILE_ENV, str(left))
    monkeypatch.setattr(train, "train", lose_the_other_rank)
    monkeypatch.setattr(train.time, "sleep", lambda seconds: waits.append((seconds, left.exists())))
    assert train.main([str(tmp_path / "resolved.json")]) == EXIT_TRAINING_FAILED
    assert waits == [(train.LOST_RANK_S, False)]
    assert "Connection closed" in read_error_file(left).message


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: train.replace(None, "a.b", 1), r" \(at neobert/config/\w+\.py:\d+\)"),
        (lambda: json.loads(""), ""),
    ],
)
def test_an_unexpected_error_has_the_last_line_of_this_project_that_raised_it(call, place):
    """A trial keeps no log: this line is all that the author of a new task sees."""
    with pytest.raises(Exception) as caught:
        call()
    error = unexpected_error(caught.value)
    assert re.fullmatch(rf"training failed: {caught.typename}: [^()]+(?:\(char 0\))?{place}", error.message)
    assert error.hint == "fix the cause, then launch again"
