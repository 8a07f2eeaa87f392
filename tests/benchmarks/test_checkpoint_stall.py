"""How steps are told apart by what was saved meanwhile, and what becomes of them in the figures."""

from __future__ import annotations

import json

import checkpoint_stall
import pytest

# Steps 0 to 12; saves are begun behind steps 5 and 8, and written during the next two.
BEGUN = [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
WRITING = [False] * 6 + [True, False, False, True, False, False, False]
PERIODS = [9999.0] * 4 + [100.0, 130.0, 104.0, 100.0, 150.0, 102.0, 100.0, 100.0]


def test_steps_are_told_apart():
    found = checkpoint_stall.summarise(PERIODS, BEGUN, WRITING)
    assert found["quiet_step_ms"] == 100
    assert found["saved_steps_ms"] == [130, 150]
    assert found["beside_step_ms"] == 103
    assert found["stall_ms"] == 50
    assert found["cost_of_a_save_ms"] == (30 + 50 + 4 + 2) / 2
    assert found["num_quiet_steps"] == 4


def test_without_a_quiet_step_there_is_no_figure(tmp_path):
    found = checkpoint_stall.summarise(PERIODS, BEGUN, [True] * len(WRITING))
    assert "no step was quiet" in found["error"]
    checkpoint_stall.write_figures(tmp_path, {"beside": found | {"writes_s": []}}, 600.0)
    assert json.loads((tmp_path / "checkpoint-stall.json").read_text())["value"] is None
    assert "error" in checkpoint_stall.summarise(PERIODS, [0] * len(BEGUN), WRITING)


def test_the_figures_are_those_of_saving_beside_training(tmp_path):
    found = checkpoint_stall.summarise(PERIODS, BEGUN, WRITING) | {"writes_s": [3.0, 2.0, 4.0]}
    checkpoint_stall.write_figures(tmp_path, {"beside": found, "waiting": {"error": "planted"}}, 600.0)
    read = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert (read["checkpoint-stall"]["value"], read["checkpoint-stall"]["target"]) == (50, 100)
    assert read["checkpoint-write"]["value"] == 3.0
    assert read["checkpoint-overhead"]["value"] == pytest.approx(0.043 / 600)
    checkpoint_stall.write_figures(tmp_path, {"beside": {"error": "planted"}}, 600.0)
    assert json.loads((tmp_path / "checkpoint-stall.json").read_text())["value"] is None
