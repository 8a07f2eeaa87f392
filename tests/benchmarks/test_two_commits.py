"""Averages of the benchmark of two checkouts."""

from two_commits import median_rate


def test_the_first_steps_of_every_run_are_not_timed():
    runs = [[{"step": step, "train/tokens_per_sec": float(step)} for step in range(1, 14)]] * 2
    assert median_rate(runs) == 12.0
