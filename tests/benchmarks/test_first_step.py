"""A start: what the command is doing, and what each of four starts is without."""

from __future__ import annotations

import first_step


def test_the_parts_of_a_start_add_up(tmp_path):
    files = ("receipt.json", "heartbeat_rank0.jsonl", "metrics.jsonl")
    states = [(0.0, first_step.state_of(tmp_path))]
    for number, name in enumerate(files, 1):
        (tmp_path / name).write_text('{"step": 0}\n')
        states.append((2.0 * number, first_step.state_of(tmp_path)))
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1')
    assert first_step.state_of(tmp_path) == "evaluating, compiling", "half a line"
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    states.append((9.0, first_step.state_of(tmp_path)))
    parts = first_step.parts_of(states)
    assert sum(parts.values()) == 9.0
    assert [*parts] == ["checking", "starting the trainer", "building the model", "evaluating, compiling"]


def test_a_start_keeps_the_caches_that_it_is_measured_with(tmp_path):
    receipts = tmp_path / "caches" / "xdg_cache_home" / "neobert" / "receipts"
    left = {}
    for caches in first_step.CACHES:
        (tmp_path / "run").mkdir()
        receipts.mkdir(parents=True, exist_ok=True)
        first_step.forget(tmp_path, caches)
        assert not (tmp_path / "run").exists()
        left[caches] = (receipts.exists(), receipts.parent.exists())
    assert left == {
        "unmeasured": (True, True),
        "empty": (False, False),
        "warm": (False, True),
        "receipt": (True, True),
    }


def test_the_median_of_the_starts_counts():
    starts = [{"seconds": each, "parts": {"checking": each / 2}} for each in (17.0, 15.0, 16.0)]
    found = first_step.median(starts)
    assert found == {"seconds": 16.0, "parts": {"checking": 8.0}, "of_seconds": [17.0, 15.0, 16.0]}
