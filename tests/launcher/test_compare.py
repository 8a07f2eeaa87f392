"""Two runs side by side: keys with their origins, and metrics where both have seen as much."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir import run_history
from launcher.rundir.run_history import RunHistory, Series, common_positions
from launcher.terminal import console

CONFIG = {"task": "pretrain", "optimizer": {"lr": 0.1}, "trainer": {"output_dir": "a", "max_steps": 9}}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def write(
        name: str, losses: Mapping[int, float], *, tokens: int = 100, every: int = 2, **config: Any
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        trainer = CONFIG["trainer"] | {"output_dir": name}
        (folder / "resolved.json").write_text(json.dumps(CONFIG | {"trainer": trainer} | config), "utf-8")
        origins = {
            "optimizer.lr": {"kind": "file", "file": f"/home/me/{name}.yaml", "line": 4, "column": 2},
            "task": {"kind": "override", "file": "<command line>", "line": 2, "column": 0},
        }
        (folder / "provenance.json").write_text(json.dumps(origins), "utf-8")
        rows = [
            {"step": step, "train/loss": loss, "train/tokens_total": step * tokens}
            | ({"eval/loss": loss + 1} if step % every == 0 else {})
            for step, loss in losses.items()
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        beat = {"step": max(losses), "tokens_total": max(losses) * tokens, "phase": "train"}
        (folder / "heartbeat_rank0.jsonl").write_text(json.dumps(beat) + "\n", "utf-8")
        return folder

    return write


FALLING = {step: 10.0 - step for step in range(1, 9)}


def test_keys_are_named_with_values_and_origins(make, command):
    runs = make("a", FALLING), make("b", FALLING, optimizer={"lr": 0.2}, extra=1)
    shown = command("runs", "compare", *runs).passed()
    head, names, extra, rate, *_ = shown.out.splitlines()
    assert head == "config: 2 of 4 keys differ", "the name of the run directory differs by nature"
    assert names.split() == ["a", "b"]
    assert extra.split(maxsplit=1)[1] == "(no such key) (-)  1 (-)"
    assert rate.split() == ["optimizer.lr", "0.1", "(a.yaml:4)", "0.2", "(b.yaml:4)"]
    found = command("runs", "compare", *runs, "--json").json
    assert (found["schema_version"], found["by"]) == (1, "step")
    assert [each["value"] for each in found["config"]["optimizer.lr"]] == [0.1, 0.2]
    assert found["config"]["optimizer.lr"][1]["origin"]["line"] == 4
    assert [each["is_set"] for each in found["config"]["extra"]] == [False, True]


def test_metrics_stand_side_by_side_at_equal_steps(make, command):
    higher = {step: loss + 0.5 for step, loss in FALLING.items()}
    shown = command("runs", "compare", make("a", FALLING), make("b", higher | {9: 0.0, 10: 0.0}))
    assert "config: 0 of 3 keys differ" in shown.out
    table = shown.out.partition("eval loss at equal steps\n")[2].splitlines()
    assert [line.split() for line in table] == [
        ["step", "a", "b", "difference"],
        *([str(step), f"{11 - step}.0000", f"{11.5 - step:.4f}", "+0.5000"] for step in (2, 4, 6, 8)),
    ]
    losses = shown.out.partition("training loss at equal steps, mean since the row above\n")[2].splitlines()
    assert losses[1].split() == ["2", "8.5000", "9.0000", "+0.5000"]


def test_small_losses_have_significant_digits(make, command):
    runs = make("a", {1: 4.3e-5, 2: 4.3e-5}), make("b", {1: 1e-3, 2: 0.0})
    losses = command("runs", "compare", *runs).out.partition("training loss at equal steps")[2].splitlines()
    assert losses[2].split()[:3] == ["2", "4.3e-05", "0.0005"]


def test_runs_of_unequal_batches_compare_at_equal_tokens(make, command):
    runs = make("a", FALLING), make("b", FALLING, tokens=200)
    shown = command("runs", "compare", *runs).out
    table = shown.partition("eval loss at equal tokens\n")[2].splitlines()
    assert [line.split() for line in table[:3]] == [
        ["tokens", "a", "b", "difference"], ["400", "7.0000", "9.0000", "+2.0000"],
        ["800", "3.0000", "7.0000", "+4.0000"],
    ]  # fmt: skip
    assert "eval loss at equal steps" in command("runs", "compare", *runs, "--by", "step").out


def test_what_is_interpolated_is_marked(make, command):
    longer = {step: 20.0 - step for step in range(1, 13)}
    shown = command("runs", "compare", make("a", longer, every=4), make("b", longer, every=3)).out
    table = shown.partition("eval loss at equal steps\n")[2].splitlines()
    assert table[1].split()[1:3] == ["17.00", "~17.00"], "step 12 alone is shared: step 4 is one of a's"
    short = {step: longer[step] for step in range(1, 9)}
    shown = command("runs", "compare", make("c", longer, every=12), make("d", short, every=3)).out
    table = shown.partition("eval loss at equal steps\n")[2].splitlines()
    assert [line.split()[0] for line in table[1:3]] == ["3", "6"], "c has none within d: those of d are shown"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_narrow_terminal_gets_a_block_for_each_key(columns, make, command, monkeypatch):
    name = "a" * 30
    monkeypatch.setattr(console, "terminal_width", lambda: columns)
    shown = command(
        "runs", "compare", make(name, FALLING), make("b", FALLING, optimizer={"lr": [0.2] * 8})
    ).out
    config = shown.partition("\n\n")[0]
    assert max(map(len, config.splitlines())) <= columns
    assert ("  optimizer.lr\n" in config) == (columns == 80)


def test_a_run_that_failed_at_once_leaves_the_others_comparable(make, command):
    runs = make("a", FALLING), make("b", FALLING), make("failed", {0: 9.0})
    table = command("runs", "compare", *runs).out.partition("eval loss at equal steps\n")[2].splitlines()
    assert [line.split() for line in table[:2]] == [
        ["step", "a", "b", "failed"],
        ["2", "9.0000", "9.0000", "-"],
    ]
    assert "at equal" not in command("runs", "compare", runs[0], runs[2]).out


def test_several_runs_one_run_and_none(make, command):
    first = make("a", FALLING)
    shown = command("runs", "compare", first, make("b", FALLING), make("c", {1: 1.0}, task="classification"))
    assert "difference" not in shown.out
    assert "the runs have different tasks" in shown.out
    assert "at equal" not in shown.out
    assert command("runs", "compare", first).code == 2
    assert command("runs", "compare", first, "absent").code == 2


def test_nan_is_shown_and_is_null_in_json(make, command):
    runs = make("a", FALLING), make("b", FALLING | {8: float("nan")})
    assert "nan" in command("runs", "compare", *runs).out
    assert command("runs", "compare", *runs, "--json").json["metrics"]["eval/loss"][-1]["values"] == [
        3.0,
        None,
    ]


sorted_steps = st.lists(st.integers(1, 50), unique=True, max_size=20).map(sorted)


@given(st.lists(sorted_steps, min_size=1, max_size=3), st.integers(0, 60), st.integers(1, 12))
def test_positions_are_few_ascending_and_within_every_run(steps, last, most):
    found = common_positions([Series(each, [0.0] * len(each)) for each in steps], last, most)
    assert found == sorted(set(found))
    assert len(found) <= most
    assert all(0 < each <= last for each in found)


@given(sorted_steps.filter(len), st.integers(0, 60))
def test_a_straight_line_is_interpolated_exactly(steps, position):
    value, is_estimate = Series(steps, [3.0 * step for step in steps]).value_at(position)
    if steps[0] <= position <= steps[-1]:
        assert value == pytest.approx(3 * position)
        assert is_estimate == (position not in steps)
    else:
        assert value is None


def test_a_long_history_keeps_its_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(run_history, "PARSED_BYTES", 2**19)
    path = tmp_path / "metrics.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for step in range(1, 12_001):
            row = {"step": step, "train/loss": 1.0, "train/tokens_total": step}
            file.write(json.dumps(row | ({"eval/loss": 2.0} if step % 100 == 7 else {})) + "\n")
    assert path.stat().st_size > run_history.PARSED_BYTES
    history = RunHistory.read(path, "tokens")
    assert len(history.metric("eval/loss").positions) == 120
    assert 3_000 < len(history.metric("train/loss").positions) < 7_000
    assert history.last > 11_990
