"""The table of runs: states, losses and the best evaluation; one row for whatever else lies there."""

import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir import discovery
from launcher.rundir.run_status import read_status
from launcher.terminal import console

HERE = {"hostname": socket.gethostname()}
NOW = datetime.now(UTC)
CONFIG = {"task": "pretrain", "trainer": {"max_steps": 40, "metric_for_best_model": None}}
BEAT = {
    "seq": 1, "phase": "train", "step": 30, "max_steps": 40, "loss": 2.5,
    "tokens_per_second": 12345.6, "eta_s": 90.0, "work_at_risk_min": 1.5, "tokens_total": 1000,
}  # fmt: skip
ROWS = [
    {"step": 0, "eval/loss": 9.0},
    {"step": 10, "train/loss": 4.0, "train/tokens_per_sec": 100.0, "eval/loss": 3.0},
    {"step": 20, "train/loss": 3.0, "eval/loss": 3.5},
]


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a run directory below `runs`."""

    def write(name: str, *, config: Any = CONFIG, beat: Any = BEAT, rows: Any = ROWS, **files: Any) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "resolved.json").write_text(json.dumps(config), encoding="utf-8")
        newest = beat and {"ts_utc": datetime.now(UTC).isoformat()} | beat
        (folder / "heartbeat_rank0.jsonl").write_text(lines(newest), encoding="utf-8")
        (folder / "metrics.jsonl").write_text(lines(*rows), encoding="utf-8")
        for file, content in {"manifest": HERE, **files}.items():
            (folder / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
        return folder

    return write


def test_the_table_says_how_each_run_is(make, command):
    make("done", outcome={"status": "finished", "step": 40})
    make("sweep/lr=3", beat={**BEAT, "ts_utc": "2026-01-01T00:00:00+00:00"})
    make("away", manifest={"hostname": "elsewhere"})
    labelled = {"task": "classification", "trainer": {"metric_for_best_model": "eval/accuracy"}}
    scores = [{"step": 5, "eval/accuracy": 0.5, "eval/loss": 1.0}, {"step": 9, "eval/accuracy": 0.4}]
    make("labels", config=labelled, rows=scores, outcome={"status": "failed"})
    head, *rows = command("runs").out.splitlines()
    assert head.split() == ["run", "state", "step", "loss", "eval", "tokens/s", "seen", "best"]
    cells = {row.split()[0]: row.split() for row in rows}
    assert cells["done"][:6] == ["done", "finished", "40/40", "2.5", "3.5", "12.3k"]
    assert cells["done"][-2:] == ["3", "@10"]
    assert cells["sweep/lr=3"][1] == "died"
    assert cells["away"][1] == "running"
    assert cells["labels"][-3:] == ["accuracy", "50.0%", "@5"]
    assert rows[-1].startswith("sweep/lr=3"), "the newest sign of life comes first"


def test_json_has_a_schema_version_and_every_run(make, command):
    make("a", manifest={"hostname": "elsewhere", "restarts": [{}, {}]})
    (make("b") / "resolved.json").write_text("{", encoding="utf-8")
    shown = command("runs", "--json").json
    assert shown["schema_version"] == 1
    good, bad = shown["runs"]
    assert (good["state"], good["restarts"], good["evaluation"]) == ("running", 2, {"eval/loss": 3.5})
    assert good["best"] == {"metric": "eval/loss", "value": 3.0, "step": 10}
    assert (bad["state"], bad["problem"]) == ("unreadable", "resolved.json: not valid JSON")


def test_a_missing_run_does_not_hide_the_others(make, command):
    shown = command("status", make("a"), "typo", make("b"))
    assert (shown.code, len(shown.out.splitlines())) == (2, 2)
    assert "typo: no such folder" in shown.err
    as_json = command("status", "runs/a", "typo", "--json")
    assert (as_json.code, as_json.json["exit_code"]) == (2, 2), "one object"


def test_the_newest_run_is_shown_by_default(make, command):
    for words in (("status",), ("watch",), ("report",)):
        refused = command(*words)
        assert (refused.code, refused.out) == (2, "")
        assert "no run below the current directory" in refused.err
    ended = {"outcome": {"status": "finished"}}
    make("old", manifest={**HERE, "started_utc": "2026-01-01T10:00:00+00:00"}, **ended)
    make("sweep/new", manifest={**HERE, "started_utc": "2026-01-02T10:00:00+00:00"}, **ended)
    make("sweep/never", config={})
    for words, shown in (
        (("status",), "runs/sweep/new: finished"),
        (("watch",), "runs/sweep/new"),
        (("report",), "runs/sweep/new/report.html"),
    ):
        answer = command(*words)
        assert (answer.code, answer.err) == (0, "newest run: runs/sweep/new\n")
        assert shown in answer.out
    elsewhere = {"hostname": "elsewhere"}
    make("early", manifest={**elsewhere, "started_utc": "2026-01-01T08:00:00+00:00"})
    make("late", manifest={**elsewhere, "started_utc": "2026-01-01T09:00:00+00:00"})
    assert command("status").err == "newest run: runs/late\n", "one that is running, the last one launched"
    os.chdir("runs/sweep")
    assert command("status").err == "newest run: new\n", "without a folder of that name: the current one"
    assert "new" in command("runs").out
    os.chdir("new")
    assert command("status").err == f"newest run: {Path.cwd()}\n"


def test_a_glob_over_a_sweep_includes_its_results(make, command, tmp_path):
    folder, results = make("a"), tmp_path / "sweep.json"
    results.write_text("{}", encoding="utf-8")
    for arguments in (("status", folder, results), ("runs", "compare", folder, make("b"), results)):
        shown = command(*arguments)
        assert (shown.code, shown.err) == (0, f"skipped, not run directories: {results}\n")
        assert "sweep.json" not in shown.out
    (only,) = command("status", folder, results, "--json").json["runs"]
    assert only["run"] == str(folder)
    assert command("runs", "compare", folder, results).code == 2
    for arguments in ((results,), (results, tmp_path), (tmp_path / "typo",)):
        refused = command("status", *arguments)
        assert (refused.code, refused.out) == (2, "")
    assert "typo: no such folder" in refused.err
    assert "`neobert-launch runs` lists" in refused.err
    for arguments in (("status", tmp_path), ("watch", tmp_path)):
        hint = " ".join(command(*arguments).err.split())
        assert f"`neobert-launch runs {tmp_path}` lists the runs below it" in hint


def test_a_run_without_a_manifest_is_on_no_other_host(make, command):
    folder = make("killed", beat={}, rows=[])
    (folder / "manifest.json").unlink()
    assert "host unknown (manifest.json is missing or damaged)" in command("status", folder).out
    elsewhere = make("elsewhere", manifest={"hostname": "elsewhere"})
    assert "on another host" in command("status", elsewhere).out


def test_a_run_directory_itself_a_link_and_nothing(make, command, tmp_path):
    folder = make("a")
    (tmp_path / "runs" / "newest").symlink_to("a")
    (tmp_path / "runs" / "loop").symlink_to(".")
    (tmp_path / "runs" / "gone").symlink_to("absent")
    (tmp_path / "runs" / "notes").mkdir()
    assert [line.split()[0] for line in command("runs").out.splitlines()] == ["run", "a"]
    assert [line.split()[0] for line in command("runs", folder).out.splitlines()] == ["run", "a"]
    assert command("runs", tmp_path / "runs" / "notes").out.startswith("no runs below ")
    assert command("runs", tmp_path / "absent").code == 2
    assert command("runs", folder / "resolved.json").code == 2


def write_hostile(folder: Path, kind: str) -> None:
    path = folder / "resolved.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "gone":
        path.symlink_to("absent")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(2**30)
    else:
        path.write_bytes(kind.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("pipe", "it is a folder, a pipe or a device, not a file"),
        ("device", "it is a folder, a pipe or a device, not a file"),
        ("gone", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"),
        ("large", "larger than 32 MiB"),
        ("\udcff\x1b[31m", "not valid JSON"),
        ("[" * 200_000, "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"name": "a package.json"}', "not a config of this project"),
    ],
)
def test_what_cannot_be_read_is_one_row(kind, problem, make, command):
    make("good")
    write_hostile(make("bad"), kind)
    shown = command("runs")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[-1] == f"bad   unreadable: resolved.json: {problem}"
    assert shown.out.splitlines()[1].startswith("good")


def test_folders_of_other_commands_are_no_runs(make, command, tmp_path):
    make("good")
    parts = tmp_path / "runs" / "embeddings.npy.parts"
    parts.mkdir()
    (parts / "manifest.json").write_text("{}", encoding="utf-8")
    state = tmp_path / "runs" / "copied-checkpoint" / "trainer_state"
    state.mkdir(parents=True)
    (state / "resolved.json").write_text('{"task": "causal"}', encoding="utf-8")
    assert [Path(each["run"]).name for each in command("runs", "--json").json["runs"]] == ["good"]


def test_no_permission_is_one_row(make, command, monkeypatch):
    """As seen by a user who is not root."""
    secret, scandir = make("secret"), os.scandir

    def refuse(path: Path) -> Any:
        if path == secret:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.chdir(secret.parent)
    monkeypatch.setattr(discovery.os, "scandir", refuse)
    assert command("runs", secret.parent).out == "secret  unreadable: Permission denied\n"


def test_names_and_values_from_outside_are_shown_as_text(make, command, tmp_path):
    make("red\x1b[31m\nrow", outcome={"status": "\x1b[2J"}, beat={**BEAT, "phase": "\x1b]0;x\x07"})
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/\xff")
    (tmp_path / "runs" / os.fsdecode(b"\xff") / "metrics.jsonl").write_text("", encoding="utf-8")
    shown = command("runs").passed()
    assert len(shown.out.splitlines()) == 3
    assert all(line.isprintable() for line in shown.out.splitlines())
    assert command("runs", "--json").json["runs"][0]["state"] == "ended"


@pytest.mark.parametrize(
    "line", ["x" * 3 * 2**20, "\0" * 2**20, '{"step": 7, "train/loss": ' + "9" * 5000 + "}"]
)
def test_a_long_line_hides_no_run(line, make, command):
    folder = make("a", beat={})
    (folder / "metrics.jsonl").write_text(lines(*ROWS) + line, encoding="utf-8")
    shown = command("runs").out.splitlines()[1].split()
    assert shown[:2] == ["a", "died"]
    assert command("status", folder).code == 0


def test_a_pipe_instead_of_the_metrics_is_not_waited_for(make, command):
    folder = make("a")
    for name in ("metrics.jsonl", "heartbeat_rank0.jsonl"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert command("runs").out.splitlines()[1].split()[:2] == ["a", "died"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = {
    "resolved.json": ("task", "trainer"),
    "manifest.json": ("hostname", "trainer_pid", "trainer_started_after_boot_s", "restarts", "earlier"),
    "outcome.json": ("status", "step", "exit_code", "message"),
    "heartbeat_rank0.jsonl": (*BEAT, "boot_s", "boot_id", "last_checkpoint_step"),
    "metrics.jsonl": ("step", "train/loss", "eval/loss", "eval/accuracy"),
}
records = st.sampled_from(sorted(NAMES)).flatmap(
    lambda name: st.tuples(
        st.just(name), st.dictionaries(st.sampled_from(NAMES[name]), values, max_size=len(NAMES[name]))
    )
)


@given(found=st.lists(records, max_size=4))
def test_no_value_in_a_file_ends_the_command(found, make, command, tmp_path):
    folder = tmp_path / "runs" / "a"
    if not folder.exists():
        make("a")
    for name, content in found:
        (folder / name).write_text(json.dumps(content) + "\n", encoding="utf-8")
    for arguments in (("runs",), ("runs", "--json"), ("status", folder)):
        shown = command(*arguments)
        assert (shown.code, shown.err) == (0, ""), found


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_rows_fit_the_terminal(columns, make, command, monkeypatch):
    beat = {**BEAT, "step": 123_456, "max_steps": 1_000_000, "tokens_per_second": 623_456.0}
    make("sweeps/optimizer.lr=0.0003,scheduler.warmup_steps=2000,seed=1", beat=beat)
    by_accuracy = {"max_steps": 1_000_000, "metric_for_best_model": "eval/accuracy"}
    tuned = {"task": "classification", "trainer": by_accuracy}
    rows = [{"step": 123_456, "eval/accuracy": 0.7741, "eval/loss": 0.4567}]
    make("tuned", config=tuned, beat=beat, rows=rows, outcome={"status": "interrupted", "step": 123_456})
    monkeypatch.setattr(console, "terminal_width", lambda: columns)
    shown = command("runs").out.splitlines()
    assert max(map(len, shown)) <= max(columns, 62)
    assert any("seed=1" in line for line in shown), "the end of a name tells the points of a sweep apart"
    assert ("best" in shown[0]) == (columns >= 80)


def test_of_equal_accuracies_the_best_has_the_lower_loss(make):
    config = {"task": "classification", "trainer": {"metric_for_best_model": "eval/accuracy"}}
    losses = {2: 0.9, 4: 0.1, 6: 0.1}
    rows = [{"step": step, "eval/accuracy": 1.0, "eval/loss": loss} for step, loss in losses.items()]
    found = read_status(make("a", config=config, rows=rows), NOW).best
    assert found is not None
    assert found.step == 4


def test_the_evaluation_before_training_is_the_best_only_where_it_is_alone(make):
    """A new head may be right by chance, and has no checkpoint."""
    config = {"task": "classification", "trainer": {"metric_for_best_model": "eval/accuracy"}}
    rows = [{"step": step, "eval/accuracy": value} for step, value in {0: 0.9, 5: 0.6, 9: 0.7}.items()]
    steps = [
        read_status(make(name, config=config, rows=rows[:end]), NOW).best
        for name, end in (("a", 1), ("b", 3))
    ]
    assert [best and best.step for best in steps] == [0, 9]


def test_the_best_of_a_long_history_is_found(make):
    folder = make("a", config={**CONFIG, "trainer": {"metric_for_best_model": "eval/loss"}})
    rows = [{"step": step, "train/loss": 1.0, "padding": 0.5, "x": 10**15} for step in range(30_000)]
    (folder / "metrics.jsonl").write_text(lines({"step": 0, "eval/loss": 0.1}, *rows), encoding="utf-8")
    found = read_status(folder, NOW).best
    assert found is not None
    assert (found.value, found.step) == (0.1, 0)
