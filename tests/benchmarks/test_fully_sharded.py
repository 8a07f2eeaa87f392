"""The benchmark of sharded decoders, on two ranks of a CPU and then on one."""

from __future__ import annotations

import json
import sys
from math import inf

import fully_sharded
import pytest
from commands import apart
from fully_sharded import Layout, quiet_rate


@pytest.mark.e2e
def test_a_killed_run_continues_on_another_number_of_ranks(tmp_path, monkeypatch):
    options = ["--sessions", "2", "1", "--save-steps", "4", "--steps", "3"]
    monkeypatch.setattr(sys, "argv", ["fully_sharded", "toy", str(tmp_path), *options])
    plans, planned = fully_sharded.plans, []
    monkeypatch.setattr(
        fully_sharded, "plans", lambda file, sessions: planned.append(file) or plans(file, sessions)
    )
    fully_sharded.main()
    assert planned == [tmp_path / fully_sharded.PLAN]
    found = json.loads((tmp_path / "fsdp2-toy.json").read_text(encoding="utf-8"))
    first, second = found["detail"]["sessions"].values()
    assert first["problem"] is None
    assert first["saves"][0]["step"] == 4
    assert set(first["host_mib"]) == {"0", "1"}
    assert second["resumed_step"] >= 4
    assert [row["step"] for row in second["rows"]][:2] == [second["resumed_step"] + n for n in (1, 2)]
    assert second["losses"]["steps"] >= 1
    assert second["losses"]["largest"] < 1e-5
    reading = found["detail"]["reading"]
    assert (reading["differing"], reading["tensors"]) == ([], 11)
    assert reading["buffers"]
    assert all(reading["buffers"].values())
    assert "is_complete" not in found


def test_rates_are_those_of_steps_before_a_save_and_after_the_first():
    rows = [
        {"step": step, "train/tokens_per_sec": 100.0 if 16 <= step <= 20 else 1.0} for step in range(11, 30)
    ]
    assert quiet_rate(rows, 10) == 100.0
    assert quiet_rate(rows[:3], 10) is None
    assert quiet_rate([], 0) is None


def test_losses_are_compared_at_equal_steps():
    one = [{"step": step, "train/loss": 2.0} for step in (4, 5)]
    other = [{"step": 5, "train/loss": 2.2}, {"step": 6, "train/loss": inf}]
    assert apart(other, one) == {
        "steps": 1,
        "largest": pytest.approx(0.1),
        "by_step": {5: pytest.approx(0.1)},
    }


def test_every_layout_has_the_same_microbatches_in_a_step():
    keys = {text: Layout.of(text).keys(8) for text in ("1", "2", "4", "2x2")}
    ranks = {text: each["distributed.nproc_per_node"] for text, each in keys.items()}
    assert ranks == {"1": 1, "2": 2, "4": 4, "2x2": 4}
    assert {each["trainer.gradient_accumulation_steps"] * ranks[text] for text, each in keys.items()} == {8}
    assert keys["2x2"]["distributed.replicas"] == 2
