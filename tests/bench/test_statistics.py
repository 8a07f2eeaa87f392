"""What the turns of two arms say, and what they do not."""

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.bench.comparison import WANTED_COVERAGE, Interval, compare, interval_coverage, median_interval

rates = st.floats(min_value=1.0, max_value=1e6)
some_rates = st.lists(rates, min_size=1, max_size=20)


@pytest.mark.parametrize("n", range(2, 9))
def test_coverage_is_that_of_coin_tosses(n):
    """Each value lies above the true median or below it, as a coin falls."""
    for depth in range(n // 2):
        tosses = list(itertools.product((0, 1), repeat=n))
        covered = sum(depth < sum(toss) < n - depth for toss in tosses)
        assert interval_coverage(n, depth) == pytest.approx(covered / len(tosses))


@given(some_rates)
def test_the_interval_holds_the_median(values):
    interval = median_interval(values)
    assert interval.low <= statistics.median(values) <= interval.high
    assert {interval.low, interval.high} <= set(values)
    assert 0 <= interval.coverage < 1


@given(st.lists(rates, min_size=6, max_size=20))
def test_from_six_values_on_the_interval_covers_what_was_wanted(values):
    assert median_interval(values).coverage >= WANTED_COVERAGE


@given(st.lists(rates, min_size=6, max_size=20, unique=True))
def test_no_narrower_interval_would_do(values):
    ordered, interval = sorted(values), median_interval(values)
    depth = ordered.index(interval.low)
    assert interval_coverage(len(values), depth + 1) < WANTED_COVERAGE


def test_one_value_says_nothing():
    assert median_interval([3.0]) == Interval(3.0, 3.0, 0.0)


@given(st.lists(rates, min_size=1, max_size=5), st.floats(min_value=1.01, max_value=100))
def test_few_rounds_give_no_verdict(values, factor):
    assert compare(values, [factor * value for value in values]).verdict == "too few rounds for a verdict"


@given(st.lists(rates, min_size=6, max_size=15))
def test_a_slowdown_is_found_whatever_slows_both(drift):
    """Rounds may differ a million-fold: the ratio within each does not."""
    found = compare(drift, [value / 2 for value in drift])
    assert found.ratio == pytest.approx(0.5)
    assert found.verdict == "b is slower"
    assert compare([value / 2 for value in drift], drift).verdict == "b is faster"


@given(st.lists(st.tuples(rates, rates), min_size=6, max_size=15))
def test_swapping_the_arms_turns_the_verdict_round(pairs):
    a, b = zip(*pairs, strict=True)
    turned = {"b is slower": "b is faster", "b is faster": "b is slower"}
    verdict = compare(a, b).verdict
    assert compare(b, a).verdict == turned.get(verdict, verdict)


def test_equal_arms_are_told_apart_as_seldom_as_promised():
    draw = random.Random(0)
    found = [
        compare([draw.gauss(100, 3) for _ in range(8)], [draw.gauss(100, 3) for _ in range(8)]).verdict
        for _ in range(1000)
    ]
    wrong = 1 - found.count("no difference shown") / len(found)
    assert 0 < wrong < 2 * (1 - WANTED_COVERAGE)
