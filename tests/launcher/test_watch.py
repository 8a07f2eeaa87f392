"""What a run leaves is read while it is written: torn lines, cut files, missing files."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from launcher.commands.status import BETWEEN, read_status, status_line
from launcher.run import live_view
from launcher.run.live_view import FaultTolerantView, PlainView, make_view
from launcher.rundir.live_state import LiveReader, metrics_text, phase_text
from launcher.rundir.records import MetricsTail, read_outcome
from launcher.terminal import console
from launcher.terminal.metric_text import metric_text
from launcher.terminal.values import show_count, show_duration, show_mib
from neobert.clock import boot_id
from neobert.runfiles.checkpoint.manifest import seal_checkpoint

BEAT = {
    "ts_utc": "2026-01-01T00:00:00.000+00:00", "phase": "train", "step": 10, "max_steps": 40, "loss": 2.5,
    "tokens_per_second": 12345.6, "eta_s": 90.0, "work_at_risk_min": 1.5, "host_rss_mib": 2048,
    "gpu_mem_reserved_mib": None,
    "last_checkpoint_step": 8,
}  # fmt: skip
ROW = {"step": 10, "train/loss": 2.5, "train/tokens_per_sec": 12345.6, "eval/loss": 3.5}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], StringIO]:
    """Give progress bars a terminal of a width, and return what they write."""

    def of_width(columns: int) -> StringIO:
        out = StringIO()
        shown_on = Console(file=out, force_terminal=True, width=columns, no_color=True)
        monkeypatch.setattr(live_view, "Console", lambda **_: shown_on)
        return out

    return of_width


def plain(out: StringIO) -> str:
    """Return the lines of a terminal without what moves its cursor."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n")


def append(path: Path, *rows: Any, torn: str = "") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.write(torn)


def test_lines_are_read_once_and_only_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read_new() == []
    append(path, {"step": 0}, torn='{"step": ')
    assert tail.read_new() == [{"step": 0}]
    append(path, torn="5}\n")
    assert tail.read_new() == [{"step": 5}]
    assert tail.read_new() == []


def test_a_file_that_is_cut_back_shows_no_step_twice_and_misses_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append(path, *({"step": step} for step in (0, 5, 10, 15)))
    tail = MetricsTail(path, after_step=10)
    tail.skip_existing()
    replacement = tmp_path / "new"
    append(replacement, *({"step": step} for step in (0, 5, 10)))
    replacement.replace(path)
    assert tail.read_new() == []
    append(path, {"step": 15})
    assert tail.read_new() == [{"step": 15}]


def test_an_earlier_session_is_not_shown_again(tmp_path):
    append(tmp_path / "metrics.jsonl", {"step": 0, "train/loss": 1.0})
    shown: list[str] = []
    view = PlainView(LiveReader(tmp_path, -1, max_steps=40), shown.append)
    view.refresh()
    append(tmp_path / "metrics.jsonl", {"step": 5, "train/loss": 2.0})
    view.close()
    assert [words.split()[1] for words in shown] == ["5/40"]


def test_a_line_in_words():
    assert metrics_text(ROW, BEAT) == (
        "step 10/40  loss 2.5000  eval loss 3.5000  12.3k tokens/s  eta 2 min  memory 2.0 GiB"
        "  saved 2 min ago"
    )
    assert "memory 1.0 GiB" in metrics_text(ROW, {**BEAT, "gpu_mem_reserved_mib": 1024})
    assert metrics_text({"step": 0, "eval/loss": 1.0}, {}) == "step 0/?  eval loss 1.0000"


@pytest.mark.parametrize(("columns", "bar"), [(40, 0), (80, 10), (120, 24)])
@pytest.mark.parametrize("steps", [40, 1_000_000])
def test_a_line_fits_its_terminal_and_the_bar_stays_as_wide(columns, bar, steps, tmp_path, terminal):
    out = terminal(columns)
    view = live_view.ProgressView(LiveReader(tmp_path, -1))
    append(tmp_path / "metrics.jsonl", ROW)
    beat = {**BEAT, "phase": "data_wait", "max_steps": steps, "step": steps, "eta_s": 72_600}
    append(tmp_path / "heartbeat_rank0.jsonl", beat)
    view.close()
    lines = plain(out).split("\n")
    last = next(line for line in reversed(lines) if "data_wait" in line)
    assert last.count("━") == bar
    assert f"{steps}/{steps}" in last
    assert "…" not in last
    assert max(map(len, lines)) <= columns


def test_the_least_telling_values_go_first():
    unknown = dict.fromkeys(live_view.FIELDS, "-")
    values = unknown | {
        "count": "7/9",
        "loss": "1",
        "eval": "eval 2",
        "speed": "2k",
        "eta": "3 s",
        "memory": "4 GiB",
    }
    assert live_view.join_fitting_fields(values, 200) == "7/9  loss 1  eval 2  eta 3 s  2k tokens/s  4 GiB"
    assert live_view.join_fitting_fields(values, 44) == "7/9  loss 1  eval 2  eta 3 s  2k tokens/s"
    assert live_view.join_fitting_fields(values, 30) == "7/9  loss 1  eval 2  eta 3 s"
    assert live_view.join_fitting_fields(values, 12) == "7/9  eval 2"
    assert live_view.join_fitting_fields(values, 4) == "7/9"


def test_a_classifier_shows_its_metrics_at_80_columns(tmp_path, terminal):
    """The live line has the metric that selects checkpoints; the line of an evaluation has all of them."""
    out = terminal(80)
    config = {"task": "classification", "trainer": {"metric_for_best_model": "eval/mcc"}}
    (tmp_path / "resolved.json").write_text(json.dumps(config), encoding="utf-8")
    view = live_view.ProgressView(LiveReader(tmp_path, -1))
    append(tmp_path / "metrics.jsonl", {**ROW, "eval/accuracy": 0.8125, "eval/f1": 0.5, "eval/mcc": 0.3125})
    append(tmp_path / "heartbeat_rank0.jsonl", {**BEAT, "step": 1000, "max_steps": 10_000})
    view.close()
    lines = plain(out).split("\n")
    assert "step 10/10000  eval loss 3.5000  accuracy 81.25%  f1 0.5000  mcc 0.3125" in map(str.strip, lines)
    assert any("1000/10000  loss 2.5  mcc 0.3125" in line for line in lines)
    assert metric_text("eval/source_accuracy", 0.25) == "source_accuracy 25.00%"
    assert metric_text("eval/loss", 4.3e-5) == "eval loss 4.3e-05"


def test_a_phase_says_how_much_of_it_is_done():
    assert phase_text({"phase": "eval", "phase_done": 12, "phase_total": 48}) == "eval 25%"
    assert phase_text({"phase": "eval", "phase_done": 12, "phase_total": None}) == "eval 12"
    assert phase_text({"phase": "eval", "phase_done": 60, "phase_total": 48}) == "eval 100%"
    assert phase_text({"phase": "train", "phase_done": None}) == "train"
    assert phase_text({}) == "-"


def shown_by(view: live_view.ProgressView, out: StringIO) -> str:
    """Refresh a view, and return its newest line."""
    out.truncate(out.seek(0))
    view.refresh()
    view.progress.refresh()
    return plain(out).strip().split("\n")[-1]


def test_the_line_follows_a_restart_and_the_progress_of_a_start(tmp_path, terminal):
    """Until the new trainer reports, the phase and the ETA of the killed one are not those of the run."""
    out, beats = terminal(100), tmp_path / "heartbeat_rank0.jsonl"
    view = live_view.ProgressView(LiveReader(tmp_path, -1))
    try:
        here = {"boot_id": boot_id(), "boot_s": 50.0}
        append(
            beats, {**BEAT, **here, "seq": 1, "phase": "start", "phase_doing": "tokenizer: 3 of 9 documents"}
        )
        assert shown_by(view, out).endswith("tokenizer: 3 of 9 documents")
        append(beats, {**BEAT, **here, "seq": 2})
        assert "eta 2 min" in shown_by(view, out)
        (tmp_path / "manifest.json").write_text('{"trainer_started_after_boot_s": 60.0}', encoding="utf-8")
        line = shown_by(view, out)
        assert line.startswith("starting ")
        assert "10/40" in line
        assert "eta" not in line
        append(beats, {**BEAT, **here, "boot_s": 61.0, "seq": 3})
        assert shown_by(view, out).startswith("train ")
        append(beats, {**BEAT, **here, "boot_s": 62.0, "seq": 4, "phase": "failed"})
        assert "eta" not in shown_by(view, out), "a run that has ended arrives nowhere"
    finally:
        view.close()


def test_no_bar_without_a_terminal(tmp_path, monkeypatch):
    watch = LiveReader(tmp_path, -1)
    assert isinstance(make_view(watch, "text").view, PlainView)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(watch, "text").view, PlainView)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_view(watch, "json").view, PlainView)


def test_a_view_that_fails_does_not_end_the_run(capsys, tmp_path):
    def refuse(_: str) -> None:
        raise OSError(28, "No space left on device")

    append(tmp_path / "heartbeat_rank0.jsonl", BEAT)
    view = FaultTolerantView(PlainView(LiveReader(tmp_path, -1), refuse))
    append(tmp_path / "metrics.jsonl", ROW)
    for _ in range(3):
        view.refresh()
    view.close()
    assert capsys.readouterr().err.count("live view disabled") == 1


EARLIER = {**BEAT, "seq": 7, "phase": "finished", "step": 40}


def test_a_resumed_bar_begins_at_its_step_and_shows_no_heartbeat_of_an_earlier_session(tmp_path, terminal):
    out, beats = terminal(160), tmp_path / "heartbeat_rank0.jsonl"
    append(beats, {**BEAT, "seq": 5, "phase": "save"}, EARLIER)
    view = live_view.ProgressView(LiveReader(tmp_path, 10, 60))
    view.refresh()
    beats.write_text("", encoding="utf-8")
    append(beats, {**BEAT, "seq": 5, "phase": "save"})  # cut back to step 10
    assert "10/60" in shown_by(view, out)
    assert not re.search("finished|save|40/40", plain(out))
    append(tmp_path / "metrics.jsonl", {**ROW, "step": 11})
    append(beats, {**BEAT, "seq": 8, "step": 11})
    line = shown_by(view, out)
    view.close()
    for words in ("11/40", "loss 2.5", "12.3k tokens/s", "eta 2 min", "2.0 GiB", "saved 2 min ago"):
        assert words in line


def test_a_warning_of_the_trainer_is_shown_once_and_as_text(tmp_path, capsys):
    view = PlainView(LiveReader(tmp_path, -1), console.write)
    messages = {"slow_tokens": "step 9: 80 tokens/s \x1b[31m"}
    append(tmp_path / "heartbeat_rank0.jsonl", {**BEAT, "warning_messages": messages})
    view.refresh()
    append(tmp_path / "heartbeat_rank0.jsonl", {**BEAT, "warning_messages": messages | {"fast_tokens": "b"}})
    view.close()
    assert capsys.readouterr().err.splitlines() == [
        "warning: step 9: 80 tokens/s \ufffd[31m", "warning: b"
    ]  # fmt: skip


def test_colours_need_a_terminal_that_wants_them(monkeypatch):
    assert console.paint("x", "red") == "x"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console.paint("x", "red", "bold") == "\x1b[31;1mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.paint("x", "red") == "x"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "resolved.json").write_text("{}", encoding="utf-8")
    append(tmp_path / "heartbeat_rank0.jsonl", BEAT, torn='{"ts')
    return tmp_path


def test_status_in_one_line(run_dir, command):
    shown = status_line(read_status(run_dir, datetime(2026, 1, 1, 0, 1, tzinfo=UTC)))
    assert "\n" not in shown
    for words in (
        "train",
        "step 10/40",
        "loss 2.5",
        "12.3k tokens/s",
        "eta 2 min",
        "2.5 min ago",
        "heartbeat 1 min ago",
    ):
        assert words in shown
    assert command("status", run_dir).code == 0
    assert command("status", run_dir, "--output-format", "json").json["step"] == 10


def test_status_and_watch_show_the_gates_of_sparse_attention(run_dir, command):
    shares = {"branch_share_cmp": 0.2, "branch_share_slc": 0.3, "branch_share_swa": 0.5}
    for sparse, shown in (
        (shares | {"dead_layers": 0.0}, "gates cmp 20%, slc 30%, swa 50%  "),
        (shares | {"dead_layers": 0.25}, "gates cmp 20%, slc 30%, swa 50% (dead in 25% of the layers)"),
        (shares | {"branch_share_swa": "half"}, ""),
        ({"dead_layers": 1}, ""),
    ):
        beat = json.dumps(BEAT | {"nsa": sparse}) + "\n"
        (run_dir / "heartbeat_rank0.jsonl").write_text(beat, encoding="utf-8")
        state, seen = command("status", run_dir).out, command("watch", run_dir).out
        assert shown in state
        assert shown.strip() in seen
        assert ("gates" in state + seen) == bool(shown)


def test_status_says_why_a_run_failed(run_dir, command):
    failed = {
        "status": "failed", "exit_code": 4, "step": 61, "code": "CKP004", "message": "the disk is full\nmore"
    }  # fmt: skip
    (run_dir / "outcome.json").write_text(json.dumps(failed), encoding="utf-8")
    assert command("status", run_dir).out.endswith("  the disk is full [CKP004]\n")
    assert command("status", run_dir, "--output-format", "json").json["reason"] == "the disk is full [CKP004]"


def test_status_of_a_run_that_ended(run_dir):
    (run_dir / "outcome.json").write_text('{"status": "preempted", "step": 12}', encoding="utf-8")
    standing = read_status(run_dir, datetime.now(UTC))
    assert (standing.phase, standing.step, standing.is_alive, standing.eta_s) == (
        "preempted",
        12,
        False,
        None,
    )
    assert "checkpoint 1.5 min before the end" in status_line(standing)
    assert "checkpoint 0.4 s before the end" in status_line(replace(standing, minutes_since_checkpoint=0.007))


def test_a_refused_resume_does_not_hide_the_checkpoint(run_dir):
    (run_dir / "outcome.json").write_text('{"status": "failed", "step": 12}', encoding="utf-8")
    standing = replace(read_status(run_dir, datetime.now(UTC)), minutes_at_risk=None)
    assert BETWEEN + "checkpoint -" + BETWEEN in status_line(standing)
    (run_dir / "checkpoints" / "12").mkdir(parents=True)
    seal_checkpoint(run_dir / "checkpoints" / "12", 12, "digest", "now")
    assert "checkpoint of step 12" in status_line(standing)


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ((("finished", ""), ("failed", "CKP007")), "finished"),
        ((("finished", ""), ("failed", "CKP007"), ("failed", "CKP007")), "finished"),
        ((("finished", ""), ("failed", "DAT004")), "failed"),
        ((("preempted", ""), ("failed", "CKP007")), "failed"),
        ((("finished", ""), ("preempted", ""), ("failed", "CKP007")), "failed"),
        ((("failed", "CKP007"),), "failed"),
        (((7, ""), ("failed", "CKP007")), "failed"),
    ],
)
def test_a_refused_resume_leaves_a_run_finished(outcomes, state, run_dir):
    *earlier, newest = ({"status": status, "code": code, "step": 40} for status, code in outcomes)
    manifest = {"earlier": [3, {"outcome": None}, *({"outcome": each} for each in earlier)]}
    (run_dir / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (run_dir / "outcome.json").write_text(json.dumps(newest), encoding="utf-8")
    standing = read_status(run_dir, datetime.now(UTC))
    assert (standing.state, standing.phase, standing.step) == (state, state, 40)


@pytest.mark.parametrize(
    "left",
    [
        "", "garbage", '{"status": "fini', "[1]", "{}", "[" * 200_000, "\udcff", '{"status": 3}',
        '{"step": "ten"}', '{"step": null}', '{"step": [1]}', '{"step": 1e400}', '{"exit_code": true}',
    ],
)  # fmt: skip
def test_status_of_a_run_whose_outcome_is_damaged(left, run_dir, command):
    (run_dir / "outcome.json").write_text(left, encoding="utf-8", errors="surrogateescape")
    shown = command("status", run_dir).passed()
    assert "ended, outcome.json is damaged, last phase: train" in shown.out
    assert "step 10/40" in shown.out
    assert "checkpoint 1.5 min before the end" in shown.out
    assert "eta" not in shown.out
    assert read_outcome(run_dir) == {}


def test_status_of_a_run_that_died(run_dir, monkeypatch):
    import socket

    manifest = {"hostname": socket.gethostname(), "trainer_pid": 2**22 + 1, "trainer_started": 1.0}
    (run_dir / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    standing = read_status(run_dir, datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert standing.phase == "died while in train"
    assert "checkpoint 2.5 min ago" in status_line(standing)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    standing = read_status(run_dir, datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert standing.phase == "died while in train (disk full, see logs/ for the reason)"
    assert "checkpoint 2.5 min ago" in status_line(standing)
    beats = run_dir / "heartbeat_rank0.jsonl"
    beats.write_text(beats.read_text(encoding="utf-8").replace('"phase": "train"', '"phase": "failed"'))
    standing = read_status(run_dir, datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert standing.phase == "failed, without outcome.json (disk full, see logs/ for the reason)"


def test_status_of_a_run_whose_new_trainer_has_not_reported(tmp_path):
    """The newest heartbeat is that of the session before, whose phase, ETA and risk are over."""
    import os
    import socket

    import psutil

    started_s = psutil.Process().create_time() - psutil.boot_time()
    manifest = {
        "hostname": socket.gethostname(),
        "trainer_pid": os.getpid(),
        "trainer_started_after_boot_s": started_s,
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    states, at_risk = [], []
    for beat_s in (started_s - 5, started_s + 5):
        append(tmp_path / "heartbeat_rank0.jsonl", BEAT | {"boot_id": boot_id(), "boot_s": beat_s})
        status = read_status(tmp_path, datetime.now(UTC))
        states.append((status.state, status.phase, status.eta_s, status.step))
        at_risk.append((status.minutes_since_checkpoint is None, status.minutes_at_risk is None))
    assert states == [("starting", "starting", None, 10), ("running", "train", 90.0, 10)]
    assert at_risk == [(True, True), (False, False)]


def test_status_before_the_first_checkpoint(tmp_path):
    append(tmp_path / "heartbeat_rank0.jsonl", BEAT | {"last_checkpoint_step": None})
    standing = read_status(tmp_path, datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert (standing.minutes_since_checkpoint, standing.minutes_at_risk) == (None, 2.5)
    assert "no checkpoint yet, 2.5 min at risk" in status_line(standing)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (show_duration(0), "0 s"), (show_duration(3.14159), "3.1 s"), (show_duration(59.4), "59 s"),
        (show_duration(0.0012), "0 s"), (show_duration(0.49), "0.5 s"), (show_duration(9.97), "10 s"),
        (show_duration(119), "2 min"), (show_duration(3 * 3600 + 300), "3 h 05 min"),
        (show_duration(10 * 86400), "10.0 days"), (show_duration(None), "-"),
        (show_count(950), "950"), (show_count(12345), "12.3k"), (show_count(245_136_954), "245M"),
        (show_count(999.7), "1k"), (show_count(999_600), "1M"), (show_count(999.4), "999"),
        (show_count(-999_600), "-1M"), (show_mib(1023.7), "1.0 GiB"),
        (show_mib(512), "512 MiB"), (show_mib(21504), "21.0 GiB"), (show_mib(None), "-"),
    ],
)  # fmt: skip
def test_numbers_for_people(shown, expected):
    assert shown == expected
