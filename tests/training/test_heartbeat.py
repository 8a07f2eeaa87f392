"""The heartbeat beside the loop: it goes on when the loop does not, and its files stay small."""

import json
import os
import threading
import time
from datetime import datetime

import pytest

from neobert.errors import EXIT_DO_NOT_REQUEUE
from neobert.runfiles.attempt import FILE, TOKEN_ENV
from neobert.runfiles.phases import STEP, PhaseTracker
from neobert.runfiles.run_dir import heartbeat_path
from neobert.training.telemetry import heartbeat as module
from neobert.training.telemetry.heartbeat import Heartbeat
from neobert.training.telemetry.jsonl_writer import (
    JsonlWriter,
    read_rows,
    rotated_path,
    trim_heartbeat,
)


def wait_until(holds):
    deadline_s = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert holds()


def test_it_goes_on_while_the_loop_stands_still(tmp_path):
    path, phases = heartbeat_path(tmp_path, 1), PhaseTracker()
    with Heartbeat(path, 1, phases, 5, "a reason", "d" * 64).repeat_every(0.01):
        phases.enter(STEP, 3)
        wait_until(lambda: len(read_rows(path)) > 3)
    beats = read_rows(path)
    assert [beat["seq"] for beat in beats] == list(range(5, 5 + len(beats)))
    last = beats[-1]
    assert (last["phase"], last["last_progress_step"], last["rank"]) == (STEP, 3, 1)
    assert (last["unguarded"], last["loss"], last["work_at_risk_min"]) == ("a reason", None, None)
    assert (last["schema_version"], last["config_digest"]) == (1, "d" * 64)
    progressed, written = (datetime.fromisoformat(last[name]) for name in ("last_progress_ts_utc", "ts_utc"))
    assert written > progressed
    assert len({beat["last_progress_ts_utc"] for beat in beats[1:]}) <= 2


def test_the_thread_ends_with_the_block(tmp_path):
    with Heartbeat(tmp_path / "beat.jsonl", 0, PhaseTracker(), 0).repeat_every(60):
        assert any(thread.name == "heartbeat" for thread in threading.enumerate())
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())


def test_a_disk_that_takes_no_line_does_not_end_the_thread(tmp_path, monkeypatch, caplog):
    path, fails, real = tmp_path / "beat.jsonl", [True], JsonlWriter.append

    def append(self, row):
        if fails[0]:
            raise OSError("full")
        real(self, row)

    monkeypatch.setattr(JsonlWriter, "append", append)
    with Heartbeat(path, 0, PhaseTracker(), 0).repeat_every(0.01):
        wait_until(lambda: "the heartbeat could not be written: full" in caplog.text)
        fails[0] = False
        wait_until(lambda: read_rows(path))


def test_files_are_bounded_and_no_line_is_lost_between_two(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT_BYTES", 4000)
    path = tmp_path / "beat.jsonl"
    beat = Heartbeat(path, 0, PhaseTracker(), 0)
    for _ in range(40):
        beat._append()
    numbers = [row["seq"] for row in read_rows(rotated_path(path)) + read_rows(path)]
    assert numbers == list(range(numbers[0], 40))
    assert len(read_rows(path)) > 0
    assert max(os.path.getsize(file) for file in (path, rotated_path(path))) <= 4000
    assert {file.name for file in tmp_path.iterdir()} == {"beat.jsonl", "beat.jsonl.1"}
    beat._writer.close()


@pytest.mark.parametrize(("resumed_step", "kept"), [(None, []), (4, [None, 1, 4]), (9, [None, 1, 4, 5, 9])])
def test_a_resumed_run_cuts_back_both_files_and_counts_on(tmp_path, resumed_step, kept):
    path = tmp_path / "beat.jsonl"
    rotated_path(path).write_text(
        "".join(json.dumps({"seq": n, "step": s}) + "\n" for n, s in [(0, None), (1, 1)])
    )
    rows = [{"seq": 2, "step": 4}, {"seq": 3, "step": 5}, {"seq": 4, "step": 9}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"seq": 5, "st')
    assert trim_heartbeat(path, resumed_step) == 5
    assert [row["step"] for row in read_rows(rotated_path(path)) + read_rows(path)] == kept


def test_a_stuck_rank_of_a_replaced_launch_ends(tmp_path, monkeypatch):
    """Its loop may wait for the ranks of a lost node, and its file is one of the later launch."""
    path, ended = heartbeat_path(tmp_path, 1), []
    monkeypatch.setattr(module, "LEAVE_S", 0.01)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setenv(TOKEN_ENV, "first")
    with Heartbeat(path, 1, PhaseTracker(), 0).repeat_every(0.01):
        wait_until(lambda: len(read_rows(path)) > 1)
        assert not ended
        (tmp_path / FILE).write_text('{"token": "second"}')
        wait_until(lambda: ended)
        written = path.read_bytes()
    assert ended == [EXIT_DO_NOT_REQUEUE]
    assert path.read_bytes() == written
