"""What the benchmark of two checkouts gives both of them, and how it averages."""

from __future__ import annotations

from two_commits import changed, rate


def test_only_keys_that_differ_are_given():
    defaults = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}, "g": 5}
    values = {"a": 1, "b": {"c": 2, "d": 30}, "e": {"f": 4}, "g": None}
    assert changed(values, defaults) == {"b": {"d": 30}, "g": None}


def test_the_first_steps_of_every_run_are_not_timed():
    runs = [[{"step": step, "train/tokens_per_sec": float(step)} for step in range(1, 14)]] * 2
    assert rate(runs) == 12.0
