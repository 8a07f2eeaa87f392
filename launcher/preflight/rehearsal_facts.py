"""Rehearsal facts, combined from the ranks' records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.probes.probe import IncompleteError
from launcher.rundir.records import Record
from launcher.terminal.values import replace_nonfinite
from neobert.errors import ProjectError
from validators.facts_io import parse_record
from validators.facts_rehearsal import RehearsalFacts, WatchdogFacts

Ranks = Sequence[Record]
SCHEDULE_FIELDS = ("step", "learning_rate", "schedule_position")
COPIED_FIELDS = (
    "worst_case",
    "precision",
    "attention",
    "speed",
    "learning",
    "accumulation",
    "evaluation",
    "overlap",
    "save_s",
    "answers",
    "planned_steps",
)
SHARED = {
    "batches": "data",
    "cursor": "position in the data",
    "tokens_total": "tokens",
    "learning_rate": "learning rate",
    "schedule_position": "schedule",
    "generators": "random generators",
}
KINDS = {"NoneType": "null"}
MAX_NAMED = 5


def combine_records(
    fresh: Ranks,
    resumes: Sequence[Ranks],
    outside: Mapping[str, Any],
    watchdog: WatchdogFacts | None,
    num_ranks: int,
    duration_s: float,
) -> RehearsalFacts:
    """Combine the records of the ranks to facts. Raises IncompleteError if the records are not valid.

    Args:
        fresh: records of the uninterrupted run, by rank.
        resumes: records of each resumed run, by rank.
        outside: memory of rank 0 as reported by the driver and the operating system.
    """
    first = fresh[0] or next(each for each in fresh if each)
    memories = [each["memory"] for each in fresh if each.get("memory")]
    content: dict[str, Any] = {
        "device": first.get("device", "cpu"),
        "device_name": first.get("device_name", ""),
        "num_ranks": num_ranks,
        "duration_s": round(duration_s, 2),
        "out_of_memory": next((each["out_of_memory"] for each in fresh if each.get("out_of_memory")), ""),
        **{name: first[name] for name in COPIED_FIELDS if name in first},
        "memory": max(memories, key=lambda each: each["peak_reserved_mib"], default=None),
        "schedule": [{name: line[name] for name in SCHEDULE_FIELDS} for line in first.get("trace", ())],
        "resumes": list(_resume_comparisons(fresh, resumes)),
        "telemetry": _telemetry_record(first, outside),
        "keys_read": sorted(set(first["keys_read"]).union(*(each[0]["keys_read"] for each in resumes))),
        "keys_replaced": sorted(first.get("keys_replaced", ())),
    }
    if watchdog is not None:
        content["watchdog"] = {
            "budget_s": watchdog.budget_s,
            "detected_s": watchdog.detected_s,
            "survivors": watchdog.survivors,
        }
    try:
        return parse_record(RehearsalFacts, replace_nonfinite(content))
    except ProjectError as error:
        raise IncompleteError(f"the rehearsal's report is invalid: {error.message}") from None


def _telemetry_record(first: Record, outside: Mapping[str, Any]) -> Record | None:
    if "reading" not in first or not first.get("beats") or outside["system_rss_mib"] is None:
        return None
    (beat,) = first["beats"]
    kinds = {name: type(value).__name__ for name, value in beat.items()}
    return {
        "fields": {name: KINDS.get(kind, kind) for name, kind in kinds.items()},
        **first["reading"],
        **outside,
    }


def _resume_comparisons(fresh: Ranks, resumes: Sequence[Ranks]) -> Iterator[Record]:
    """Yield the comparison of each resumed run with the uninterrupted run and with the saved state."""
    saved = [each.get("state", {}) for each in fresh]
    if not resumes:
        return
    expected = first_resumed_step(fresh[0], resumes[0][0])
    for ranks in resumes:
        yield compare_with_uninterrupted(fresh, ranks, saved, expected)
        saved = [each.get("state_at_end", {}) for each in ranks]
        expected = ranks[0]["trace"][-1]["step"]


def first_resumed_step(fresh: Record, first: Record) -> int:
    """Return the step of the uninterrupted run's only checkpoint, two resumes before its end."""
    return int(fresh["trace"][-1]["step"]) - 2 * len(first["trace"])


def compare_with_uninterrupted(
    fresh: Ranks, ranks: Ranks, saved: Sequence[Record], expected_start: int
) -> Record:
    """Compare a resumed run's steps with the uninterrupted run's, on every rank."""
    altered = [
        name
        for before, each in zip(saved, ranks, strict=True)
        for name in altered_tensors(before, each["state"])
    ]
    pairs = [pair for whole, each in zip(fresh, ranks, strict=True) for pair in _pair_steps(whole, each)]
    losses = [_relative_difference(before["loss"], after["loss"]) for before, after in pairs]
    differing = [
        word
        for field, word in SHARED.items()
        if any(before[field] != after[field] for before, after in pairs)
    ]
    is_first = [after["step"] == ranks[0]["start"] + 1 for _, after in pairs]
    return {
        "expected_start": expected_start,
        "start": ranks[0]["start"],
        "num_tensors": sum(map(len, saved)),
        "altered_tensors": sorted(set(altered))[:MAX_NAMED],
        "compared_steps": len({after["step"] for _, after in pairs}),
        "differing": differing,
        "first_loss_difference": _largest_difference(
            [loss for loss, first in zip(losses, is_first, strict=True) if first]
        ),
        "largest_loss_difference": _largest_difference(losses),
    }


def _largest_difference(differences: Sequence[float]) -> float:
    """Return the largest difference, 0 if there are none, or NaN if any is not finite."""
    return max(differences, default=0.0) if all(map(math.isfinite, differences)) else math.nan


def altered_tensors(before: Record, after: Record) -> Iterator[str]:
    """Yield the names of tensors that were changed, removed or added."""
    return (name for name in sorted({*before, *after}) if before.get(name) != after.get(name))


def _pair_steps(whole: Record, resumed: Record) -> Iterator[tuple[Record, Record]]:
    before = {line["step"]: line for line in whole["trace"]}
    return ((before[line["step"]], line) for line in resumed["trace"] if line["step"] in before)


def _relative_difference(before: float, after: float) -> float:
    return abs(after - before) / max(abs(before), 1e-30)
