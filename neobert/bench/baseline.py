"""An earlier report to compare with: only where nothing but the code can have made the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neobert.bench.request import Request
from neobert.errors import EXIT_CHECK_UNKNOWN, ProjectError

ABSENT = "absent"


def refuse_other_baseline(request: Request, about: Mapping[str, Any]) -> None:
    """Raise `ProjectError` that names every difference in device, versions, config, data and settings."""
    baseline = request.baseline
    if baseline is None:
        return
    differences = list(_differences(baseline, request, about))
    if differences:
        raise ProjectError(
            "bench-baseline",
            f"the baseline is not comparable: {'; '.join(differences)}",
            "measure the baseline again on this machine, or compare two configs in one run with --b-set",
            exit_code=EXIT_CHECK_UNKNOWN,
        )


def compare_with_baseline(baseline: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many times as fast the first arm is now. The two were not measured side by side."""
    then, now = (next(iter(each["arms"].values())) for each in (baseline, told))
    return {
        "date_utc": baseline["date_utc"],
        "tokens_per_second": then["tokens_per_second"],
        "ratio": now["tokens_per_second"] / then["tokens_per_second"],
        "ratio_of_mfu": now["mfu_of_measured_peak"] / then["mfu_of_measured_peak"],
    }


def _differences(baseline: Mapping[str, Any], request: Request, about: Mapping[str, Any]) -> Iterator[str]:
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
