"""The live view of a run: what it shows, on terminals of any size, and how it ends."""

import json
import os
import pty
import re
import select
import signal
import termios
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.run_view import TerminalSize, bucket_means, draw_columns, page_lines
from launcher.rundir.directory import lock_run_directory
from launcher.rundir.run_reader import OUTCOME_FINAL_AFTER_S, RunReader
from launcher.terminal.fold import display_width
from tests.launcher.test_runs import records
from tests.launcher.test_watch import append

WIDE = TerminalSize(120, 40, is_unicode=True)
CONFIG = {
    "task": "classification",
    "trainer": {"metric_for_best_model": "eval/mcc"},
    "watchdog": {"heartbeat_interval_s": 10.0},
}
ROW = {"train/loss": 2.0, "train/tokens_per_sec": 12345.0}
SCORES = {"eval/loss": 1.5, "eval/accuracy": 0.75, "eval/mcc": 0.5}


def beat(step: int = 10, *, age_s: float = 0.0, **more: Any) -> dict[str, Any]:
    written = datetime.now(UTC) - timedelta(seconds=age_s)
    return {
        "ts_utc": written.isoformat(), "seq": step, "phase": "train", "step": step, "max_steps": 40,
        "loss": 2.0,
        "tokens_total": 5000, "eta_s": 90.0, "work_at_risk_min": 0.5, "last_checkpoint_step": 8, "mfu": 0.412,
        "gpu_mem_reserved_mib": 12_800, "gpu_mem_total_mib": 143_156, "data_wait_ms": 1.25, **more,
    }  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "resolved.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    restart = {"ts_utc": "2026-01-01T10:20:00+00:00", "why": "rank 0 was killed", "from": "checkpoint 8"}
    manifest = {
        "hostname": "elsewhere", "started_utc": (datetime.now(UTC) - timedelta(hours=2)).isoformat(),
        "restarts": [restart],
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    append(
        folder / "heartbeat_rank0.jsonl",
        beat(warnings={"slow_tokens": 2}, warning_messages={"slow_tokens": "slow"}),
    )
    append(folder / "metrics.jsonl", {"step": 0, **SCORES}, *({"step": step} | ROW for step in range(1, 10)))
    append(folder / "metrics.jsonl", {"step": 10, **ROW, "train/loss": 1.25, **SCORES, "eval/mcc": 0.625})
    return folder


def shown(folder: Path, terminal: TerminalSize = WIDE) -> str:
    return "\n".join(page_lines(RunReader(folder).read(), terminal))


def test_the_page_shows_what_a_person_asks(run_dir):
    text = shown(run_dir)
    for words in (
        "running: train", "step 10/40", "25%", "elapsed 2 h 00 min", "ETA 2 min", "1.25", "12.3k", "0.625",
        "75.0%", "MFU 41.2%", "data wait 1.2 ms", "checkpoint step 8, 30 s ago", "best mcc 0.625 @10",
        "memory 12.5 GiB (9%)", "! 10:20 restarted from checkpoint 8: rank 0 was killed",
        "! slow (2 times)", "1.25 to 2",
    ):  # fmt: skip
        assert words in text, words
    assert "no heartbeat for" not in text


def test_the_newest_guesses_at_a_masked_word_take_one_line(run_dir):
    texts = [{"before": "a \x1b[31m" + 60 * "long ", "word": "word", "after": 60 * "end "}]
    guesses = [[["the", 0.5], ["word", 0.31], ["\n", 0.02]]]
    evaluations = [{"step": 0, "guesses": [[]]}, {"step": 10, "guesses": guesses}]
    (run_dir / "samples.json").write_text(json.dumps({"texts": texts, "evaluations": evaluations}))
    (line,) = (line for line in shown(run_dir).splitlines() if line.startswith("masked"))
    assert " [word] end " in line
    assert line.endswith(': "the" 50%, "word" 31%, "\N{REPLACEMENT CHARACTER}" 2%')
    assert 110 < display_width(line) <= 120


def test_a_rank_that_is_silent_is_an_alert(run_dir):
    append(run_dir / "heartbeat_rank3.jsonl", beat(9, age_s=31))
    assert re.search(r"! rank 3: no heartbeat for 3\d s", shown(run_dir))


def test_ranks_of_an_earlier_launch_with_more_processes_are_not_shown(run_dir):
    for rank in (1, 2):
        append(run_dir / f"heartbeat_rank{rank}.jsonl", beat(9, age_s=3600))
    config = CONFIG | {"distributed": {"nproc_per_node": 2, "nnodes": 1}}
    (run_dir / "resolved.json").write_text(json.dumps(config), encoding="utf-8")
    text = shown(run_dir)
    assert "rank 1: no heartbeat for" in text
    assert "rank 2" not in text


@pytest.mark.parametrize("loss", [0.00039932, -0.00039932, 6.395e-05, 12345678.9, 1e300])
def test_a_value_of_any_size_fits_its_column(run_dir, loss):
    append(run_dir / "metrics.jsonl", {"step": 11, **ROW, "train/loss": loss})
    lines = shown(run_dir, TerminalSize(80, 24, is_unicode=True)).splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = (line for line in lines if line.startswith("loss "))
    assert line[18:20] == "  ", line


def test_the_hint_of_a_failure_is_shown_whole_at_80_by_24(run_dir):
    hint = "inspect the batch, whose sample ids are in /a/long/path/loss_spike_rank0.json; lower optimizer.lr"
    outcome = {
        "status": "failed", "exit_code": 93, "message": "loss spike " * 9, "code": "SPK001", "hint": hint
    }  # fmt: skip
    (run_dir / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    text = shown(run_dir, TerminalSize(80, 24, is_unicode=True)).replace("\n    ", " ")
    assert f"! hint: {hint}" in text


def test_restarts_of_one_reason_are_one_alert(run_dir):
    manifest = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))
    (restart,) = manifest["restarts"]
    later = {**restart, "ts_utc": "2026-01-01T10:40:00+00:00"}
    manifest["restarts"] = [restart, later, {**later, "from": "checkpoint 9"}]
    (run_dir / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    alerts = [line for line in shown(run_dir).splitlines() if line.startswith("! 10")]
    assert alerts == [
        "! 10:40 restarted from checkpoint 9: rank 0 was killed",
        "! 10:40 restarted from checkpoint 8: rank 0 was killed (2 times)",
    ]


sizes = st.tuples(st.integers(1, 200), st.integers(1, 60), st.booleans())


@pytest.fixture
def big_run(run_dir: Path) -> RunReader:
    for rank in range(1, 65):
        append(run_dir / f"heartbeat_rank{rank}.jsonl", beat(10 - rank % 2, gpu_mem_reserved_mib=1000 + rank))
    return RunReader(run_dir)


@given(size=sizes)
def test_the_page_fits_every_terminal(size, big_run):
    width, height, is_unicode = size
    lines = page_lines(big_run.read(), TerminalSize(width, height, is_unicode=is_unicode))
    assert len(lines) <= height
    assert max(map(display_width, lines)) <= width
    assert is_unicode or all(line.isascii() for line in lines)


def test_many_ranks_are_summed_up_and_the_late_ones_are_named(big_run):
    text = "\n".join(page_lines(big_run.read(), TerminalSize(80, 24, is_unicode=True)))
    assert re.search(r"rank 1   train       step 9  memory 1001 MiB \(1%\)  heartbeat \d s ago", text)
    assert "58 more ranks, memory 1001 MiB to 12.5 GiB" in text
    assert "loss" in text


@pytest.mark.parametrize("name", ["resolved.json", "manifest.json", "heartbeat_rank0.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"step": null}', '{"started_utc": "2026-01-01"}', "\0\x1b[2J"]
)
def test_a_page_without_one_of_the_files(name, content, run_dir):
    (run_dir / name).write_text(content, encoding="utf-8")
    assert "\x1b" not in shown(run_dir)
    (run_dir / name).unlink()
    shown(run_dir)


def test_a_loss_of_nan_is_seen(run_dir):
    append(run_dir / "metrics.jsonl", {"step": 11, **ROW, "train/loss": float("nan")})
    assert "nan" in shown(run_dir)


def test_only_what_is_new_is_read(run_dir):
    reader = RunReader(run_dir)
    assert reader.read().history.last == 10
    append(run_dir / "metrics.jsonl", {"step": 12, **ROW, **SCORES})
    append(run_dir / "heartbeat_rank0.jsonl", beat(12, phase="eval"))
    snapshot = reader.read()
    assert (snapshot.history.last, snapshot.status.step, snapshot.status.phase) == (12, 12, "eval")
    assert snapshot.status.evaluation_step == 12
    again = [{"step": step, **ROW} for step in range(1, 14)]
    (run_dir / "new").write_text("".join(json.dumps(row) + "\n" for row in again), encoding="utf-8")
    (run_dir / "new").replace(run_dir / "metrics.jsonl")  # the trainer cuts the file back as it resumes
    assert reader.read().history.metric("train/loss").positions == [*range(1, 11), 12, 13]


def test_an_outcome_is_final_when_no_launcher_can_restart_the_run(run_dir):
    reader = RunReader(run_dir)
    assert not reader.read().is_over
    manifest = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))
    outcome = {"status": "failed", "message": "the loss is not finite"}
    (run_dir / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    assert reader.read().is_over
    assert "! the loss is not finite" in shown(run_dir)
    (run_dir / "manifest.json").write_text(
        json.dumps(manifest | {"launcher_pid": os.getpid()}), encoding="utf-8"
    )
    assert not reader.read().is_over
    earlier = time.time() - OUTCOME_FINAL_AFTER_S - 1
    os.utime(run_dir / "outcome.json", (earlier, earlier))
    assert reader.read().is_over


def test_a_launch_that_checks_the_run_makes_an_older_outcome_provisional(run_dir):
    (run_dir / "outcome.json").write_text('{"status": "interrupted"}', encoding="utf-8")
    reader = RunReader(run_dir)
    assert reader.read().is_over
    with lock_run_directory(run_dir):
        assert not reader.read().is_over
    assert reader.read().is_over
    with lock_run_directory(run_dir):  # to look does not hold the directory
        pass


@given(found=st.lists(records, max_size=4))
def test_no_value_in_a_file_ends_the_view(found, run_dir):
    for name, content in found:
        (run_dir / name).write_text(json.dumps(content) + "\n", encoding="utf-8")
    lines = page_lines(RunReader(run_dir).read(), WIDE)
    assert all(line.isprintable() for line in lines), found


class Shell:
    """A command on a terminal of its own."""

    def __init__(self, start: Callable[..., Any], *arguments: Any) -> None:
        self.ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (24, 80))
        streams = {"stdin": self.theirs, "stdout": self.theirs, "stderr": self.theirs}
        self.child = start(*arguments, **streams, start_new_session=True)
        self.text = ""

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self.read_for(0.1)

    def read_for(self, seconds: float) -> None:
        if select.select([self.ours], [], [], seconds)[0]:
            self.text += os.read(self.ours, 65536).decode(errors="replace")

    def ended(self) -> int:
        self.wait_for("\x1b[?1049l")
        return int(self.child.wait(timeout=60))


@pytest.fixture
def shell(start_child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shell]]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    opened: list[Shell] = []

    def start(*arguments: Any) -> Shell:
        opened.append(Shell(start_child, *arguments))
        return opened[-1]

    yield start
    for each in opened:
        os.close(each.ours)
        os.close(each.theirs)


@pytest.mark.child
@pytest.mark.parametrize("how", ["terminate", "held Ctrl-C", "outcome"])
def test_it_ends_cleanly_and_leaves_the_terminal_as_it_was(how, run_dir, shell):
    restarts = [{"from": f"checkpoint {step}", "why": "rank 0 was killed"} for step in range(30)]
    (run_dir / "manifest.json").write_text(json.dumps({"restarts": restarts}), encoding="utf-8")
    watching = shell("watch", run_dir)
    watching.wait_for("Ctrl-C quits")
    append(run_dir / "metrics.jsonl", {"step": 12, **ROW, "train/loss": 0.0625})
    watching.wait_for("0.0625")
    assert "! and more: see logs/" in watching.text  # the last line above the help
    if how == "terminate":
        os.kill(watching.child.pid, signal.SIGTERM)
    elif how == "held Ctrl-C":
        for _ in range(10_000):  # wherever the program is, also while it ends
            watching.child.send_signal(signal.SIGINT)
            watching.read_for(0.001)
            if watching.child.poll() is not None:
                break
    else:
        (run_dir / "outcome.json").write_text('{"status": "finished"}', encoding="utf-8")
    assert watching.ended() == (143 if how == "terminate" else 0)
    if how == "outcome":  # the last page stays on the terminal
        watching.wait_for("finished")


@pytest.mark.child
def test_a_run_that_a_launch_is_still_checking_is_waited_for(run_dir, tmp_path, shell, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a longer path would break the line elsewhere
    watching = shell("watch", "later")
    watching.wait_for("a launch creates it")
    run_dir.rename("later")
    watching.wait_for("Ctrl-C quits; the run continues")
    watching.child.send_signal(signal.SIGINT)
    assert watching.child.wait(timeout=60) == 0


@given(st.lists(st.none() | st.floats(), max_size=60), st.integers(1, 5), st.booleans())
def test_a_curve_has_one_column_per_value(values, height, is_unicode):
    rows = draw_columns(values, height, is_unicode=is_unicode)
    assert [len(row) for row in rows] == [len(values)] * height
    bottom = rows[-1]
    has_any = any(value is not None and abs(value) < float("inf") for value in values)
    assert [mark == " " for mark in bottom] == [value is None or not has_any for value in values]


@given(st.lists(st.integers(0, 100), unique=True, min_size=1).map(sorted), st.integers(1, 30))
def test_every_value_is_in_a_column_and_the_mean_is_kept(positions, width):
    columns = bucket_means(positions, [7.0] * len(positions), width, 100)
    assert len(columns) == width
    assert {value for value in columns if value is not None} == {7.0}


def test_a_rising_line_rises():
    rows = draw_columns([float(value) for value in range(16)], 2, is_unicode=True)
    assert rows == ["        ▁▂▃▄▅▆▇█", "▁▂▃▄▅▆▇█" + "█" * 8]
