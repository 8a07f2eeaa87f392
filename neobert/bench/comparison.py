"""Comparison of two configs by a distribution-free test, and of a report with an earlier report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb
from statistics import median
from typing import Any, NamedTuple

from neobert.bench.request import Request
from neobert.errors import EXIT_CHECK_UNKNOWN, ProjectError

WANTED_COVERAGE = 0.95
ABSENT = "absent"


class Interval(NamedTuple):
    """Confidence interval of the median: lower and upper order statistic, and coverage probability."""

    low: float
    high: float
    coverage: float

    @property
    def excludes_equality(self) -> bool:
        """Return whether the interval excludes a ratio of 1."""
        return not self.low <= 1 <= self.high


def median_interval(values: Sequence[float]) -> Interval:
    """Return the narrowest interval of order statistics that covers the median with probability 0.95 or more.

    If there are too few values, return the widest interval with its actual coverage.
    """
    ordered, n = sorted(values), len(values)
    depths = [depth for depth in range(n // 2) if interval_coverage(n, depth) >= WANTED_COVERAGE]
    depth = max(depths, default=0)
    return Interval(ordered[depth], ordered[n - 1 - depth], interval_coverage(n, depth))


def interval_coverage(n: int, depth: int) -> float:
    """Return the coverage of the interval from the `depth`-th lowest to the `depth`-th highest of n values.

    `depth` is counted from 0.
    """
    beyond: float = sum(comb(n, k) for k in range(depth + 1)) / 2**n
    return max(0.0, 1 - 2 * beyond)


class Comparison(NamedTuple):
    """Speed of config b relative to config a.

    Attributes:
        ratio: median of `ratios`.
        interval: confidence interval of `ratio`.
        ratios: speed of b over speed of a in each round, so that slowdowns of a whole round cancel.
    """

    ratio: float
    interval: Interval
    ratios: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """Return the result as text: faster, slower, no difference, or too few rounds."""
        if self.interval.coverage < WANTED_COVERAGE:
            return "too few rounds for a verdict"
        if not self.interval.excludes_equality:
            return "no difference shown"
        return "b is faster" if self.ratio > 1 else "b is slower"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "ratio": self.ratio,
            **self.interval._asdict(),
            "ratios": self.ratios,
            "verdict": self.verdict,
        }


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """Compare the tokens per second of configs a and b, one value per round."""
    ratios = tuple(right / left for left, right in zip(a, b, strict=True))
    return Comparison(median(ratios), median_interval(ratios), ratios)


def require_matching_baseline(request: Request, about: Mapping[str, Any]) -> None:
    """Raise `ProjectError` if the baseline, if any, has another device, config, data or other versions."""
    baseline = request.baseline
    if baseline is None:
        return
    differences = list(_baseline_differences(baseline, request, about))
    if differences:
        raise ProjectError(
            "bench-baseline",
            f"the baseline is not comparable: {'; '.join(differences)}",
            "measure the baseline again on this machine, or compare two configs in one run with --b-set",
            exit_code=EXIT_CHECK_UNKNOWN,
        )


def compare_with_baseline(baseline: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline's date and speed, and the first arm's speed and MFU divided by the baseline's."""
    then, now = (next(iter(each["arms"].values())) for each in (baseline, report))
    return {
        "date_utc": baseline["date_utc"],
        "tokens_per_second": then["tokens_per_second"],
        "ratio": now["tokens_per_second"] / then["tokens_per_second"],
        "ratio_of_mfu": now["mfu_of_measured_peak"] / then["mfu_of_measured_peak"],
    }


def _baseline_differences(
    baseline: Mapping[str, Any], request: Request, about: Mapping[str, Any]
) -> Iterator[str]:
    then = next(iter(baseline["arms"].values()))
    name = next(iter(request.arms))
    pairs = {
        "device": (baseline["device"], about["device"]),
        "config": (then["config_digest"][:12], request.digests[name][:12]),
        "documents": (then["data_fingerprint"][:12], about["data_fingerprint"][:12]),
    }
    for key in request.settings:
        pairs[key] = (baseline["settings"].get(key), request.settings[key])
    for package in sorted({*baseline["versions"], *about["versions"]}):
        pairs[package] = tuple(each["versions"].get(package, ABSENT) for each in (baseline, about))
    for key, (before, after) in pairs.items():
        if before != after:
            yield f"{key} was {before} and is {after}"
