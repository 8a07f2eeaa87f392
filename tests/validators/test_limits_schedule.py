"""Limits on warm-up and decay: just at them, and just beyond."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validators.judging import found, run_of
from validators.finding import Severity


def judged(*overrides: str, profile: str = "h200-prod") -> list[tuple[str, Severity | None]]:
    return [(one.path, one.severity) for one in found("SCH001", run_of(*overrides, profile=profile))]


@pytest.mark.parametrize(
    ("total", "floor", "severities"),
    [
        (2001, 0.0, [None]),
        (98_999, 0.0, [None]),
        (99_000, 0.0, []),
        (98_999, 9.99e-4, [None]),
        (98_999, 1e-3, []),
        (90_000, 1e-3, []),
        (89_999, 1e-3, [Severity.WARN]),
        (2001, 1.0, [Severity.WARN]),
        (100_000, 0.0, []),
    ],
)
def test_how_long_the_floor_may_hold(total: int, floor: float, severities: list[Any]) -> None:
    """Of 100,000 steps: 1 % at nothing, 10 % at a share of the peak."""
    run = (f"scheduler.total_steps={total}", f"scheduler.final_lr_ratio={floor}")
    assert judged(*run) == [("scheduler.total_steps", severity) for severity in severities]


def test_a_rate_that_is_zero_from_the_second_step() -> None:
    run = ("scheduler.total_steps=1", "scheduler.warmup_steps=0", "scheduler.final_lr_ratio=0.0")
    assert judged(*run) == [("scheduler.total_steps", None)]
    (one,) = found("SCH001", run_of(*run, profile="h200-prod"))
    assert "99,999 of 100,000 steps come after the decay, at 0 of the peak rate" in one.message


@pytest.mark.parametrize(
    ("steps", "severities"),
    [(50_000, []), (50_001, [Severity.WARN]), (99_999, [Severity.WARN]), (100_000, [None])],
)
def test_how_long_the_warmup_may_take(steps: int, severities: list[Any]) -> None:
    found_of = judged(f"scheduler.warmup_steps={steps}")
    assert found_of == [("scheduler.warmup_steps", severity) for severity in severities]
    percent = judged(f"scheduler.warmup_percent={steps / 1000}")
    assert percent == [("scheduler.warmup_percent", severity) for severity in severities]


def test_what_lies_behind_a_late_warmup_is_counted_once() -> None:
    """The decay is over before the warm-up: steps of warm-up are not at the floor."""
    late = ("scheduler.total_steps=1000", "scheduler.warmup_steps=50000")
    assert judged(*late) == [
        ("scheduler.warmup_steps", None),
        ("scheduler.total_steps", Severity.WARN),
    ]
    assert judged(
        "scheduler.total_steps=1000", "scheduler.warmup_steps=50000", "trainer.max_steps=55000"
    ) == [
        ("scheduler.warmup_steps", Severity.WARN),
        ("scheduler.warmup_steps", None),
    ]


@pytest.mark.parametrize(
    ("steps", "severities"), [(500, []), (501, [Severity.WARN]), (999, [Severity.WARN]), (1000, [None])]
)
def test_a_batch_that_never_is_whole(steps: int, severities: list[Severity | None]) -> None:
    run = run_of(
        "trainer.max_steps=1000", "scheduler.warmup_steps=0", f"trainer.batch_size_warmup_steps={steps}"
    )
    assert [one.severity for one in found("SCH001", run) if "batch-size" in one.message] == severities


@pytest.mark.parametrize(
    ("optimizer", "width", "rate", "count"),
    [
        ("lion", 768, 1e-5, 0),
        ("lion", 768, 2e-3, 1),
        ("muon", 768, 6e-4, 0),
        ("adamw", 192, 0.77 * 4 / 192, 0),
        ("adamw", 192, 0.01605, 1),
        ("adamw", 192, 2.5e-5, 0),
        ("adamw", 192, 2.49e-5, 1),
    ],
)
def test_a_rate_is_compared_with_the_record_of_its_optimizer_and_width(
    optimizer: str, width: int, rate: float, count: int
) -> None:
    overrides = (f"optimizer.name={optimizer}", f"model.hidden_size={width}", f"optimizer.lr={rate}")
    assert len(found("OPT006", run_of(*overrides))) == count


@pytest.mark.parametrize(("max_steps", "count"), [(8, 0), (7, 1)])
def test_a_second_moment_of_eight_steps(max_steps: int, count: int) -> None:
    run = run_of("optimizer.betas=[0.9, 0.875]", f"trainer.max_steps={max_steps}")
    assert len(found("OPT007", run)) == count


def test_lion_has_no_second_moment() -> None:
    assert found("OPT007", run_of("optimizer.betas=[0.9, 0.999]", "trainer.max_steps=500"))
    lion = ("optimizer.name=lion", "optimizer.betas=[0.9, 0.999]", "trainer.max_steps=500")
    assert found("OPT007", run_of(*lion)) == []
