"""The benchmark of float8: its run files, the bytes in NCCL's log, and losses that differ."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import low_precision
import pytest
import recipe_speed
from low_precision import (
    Arm,
    arms_of,
    gathered,
    largest_difference,
    losses_of,
    sections,
    train,
)

from profiles.registry import resolve_run
from validators.core import judge
from validators.facts import NO_FACTS
from validators.finding import Level
from validators.planning import plan_run


@pytest.mark.parametrize(("ranks", "is_small"), [(1, False), (2, False), (1, True), (2, True)])
def test_the_run_files_are_valid_and_differ_in_the_recipe_alone(ranks, is_small, tmp_path):
    recipe = "float8_tensorwise"
    read = {}
    for name in ("", recipe):
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(sections(Arm(name), 300, ranks, is_small=is_small)))
        read[name] = resolve_run(None, [file], []).config
    assert read[recipe].torchao.enable
    assert read[recipe].torchao.enable_fsdp_float8_all_gather is (ranks > 1)
    off = read[""].torchao
    assert replace(read[recipe], torchao=off) == read[""]


def test_each_recipe_has_a_run_of_its_own_and_rounding_too():
    arms = arms_of(["a", "b"], 1)
    assert [*arms] == ["bf16", "a", "bf16, uncompiled", "b"]
    assert arms["a"] == arms["bf16"]._replace(recipe="a")
    found = [sections(arm, 9, 1, is_small=False) for arm in arms.values()]
    assert [each["trainer"]["torch_compile"] for each in found] == [True, True, False, True]
    assert [*arms_of(["a"], 2)] == ["bf16", "a"]


def test_bytes_of_all_gathers_are_counted_by_type():
    line = "h:1:2 [0] NCCL INFO {}: opCount 4 sendbuff 0x7f recvbuff 0x8 count {} datatype {} op 0 root 0\n"
    log = "".join(
        line.format(*row)
        for row in [("AllGather", 100, 9), ("AllGather", 50, 1), ("AllGather", 8, 1), ("ReduceScatter", 9, 7)]
    )
    assert gathered(log) == {"2": 200, "1": 58}


def test_a_difference_is_the_largest_of_averages_over_ten_steps():
    other = [2.0] * 20
    assert largest_difference([2.0] * 20, other) == 0
    assert largest_difference([2.0] * 10 + [2.1] * 10, other) == pytest.approx(0.05)
    assert largest_difference([2.0] * 10 + [3.0] + [2.0] * 9, other) == pytest.approx(0.05)
    assert largest_difference([2.0] * 12 + [9.0] * 8, [2.0] * 12) == 0, "a run that was killed"
    assert math.isnan(largest_difference([2.0] * 9, other))


LOGS = """
import json, pathlib, sys, time
lines = [json.dumps({"step": step, "train/loss": 2.0}) + "\\n" for step in (1, 2)]
pathlib.Path(sys.argv[1], "metrics.jsonl").write_text("".join(lines) + '{"step": 3, "tr')
"""


@pytest.mark.child
def test_a_run_ends_with_its_last_step_or_its_time_and_one_that_fails_says_why(tmp_path, monkeypatch):
    def run(name: str, end: str, steps: int, seconds: float) -> dict:
        def command(resolved: Path, *_) -> list[str]:
            return [sys.executable, "-c", LOGS + end, str(resolved.parent)]

        monkeypatch.setattr(low_precision, "trainer_command", command)
        until_s = time.monotonic() + seconds
        return train(tmp_path, steps, 1, until_s, name, Arm(), is_small=True)

    assert run("whole", "time.sleep(60)", steps=2, seconds=50)["losses"] == [2.0, 2.0]
    assert run("late", "time.sleep(60)", steps=9, seconds=2)["losses"] == [2.0, 2.0]
    with pytest.raises(ValueError, match="failing ended with exit code 3:\nno GPU"):
        run("failing", "print('no GPU', flush=True); raise SystemExit(3)", steps=9, seconds=50)


def test_a_step_may_not_be_missing(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f'{{"step": {step}, "train/loss": 1.0}}\n' for step in (1, 3)))
    with pytest.raises(ValueError, match="a step is missing"):
        losses_of(file)


@pytest.mark.parametrize("part", ["wide", "narrow"])
def test_runs_whose_speed_is_compared_pass_the_static_checks(part, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(recipe_speed.sections(part, "float8_rowwise", is_small=False)))
    run = resolve_run(None, [file], [])
    findings, _ = judge(run, plan_run(run), NO_FACTS, (Level.STATIC,))
    assert [(each.code, each.message) for each in findings] == []
