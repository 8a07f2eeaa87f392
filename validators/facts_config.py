"""Config that facts were measured for, and removal of facts that do not apply to another config."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from neobert.config import digest, to_dict
from neobert.config.canonical import flatten
from neobert.config.keys import without_effects
from neobert.config.schema import RunConfig
from neobert.schema_fields import Effect
from validators.facts import Facts, MeasuredFor, ProbeRecord

RUN_DEPENDENT = ("distributed", "inspection", "numerics", "rehearsal")
# Keys with only these effects do not affect measurements.
WITHOUT_EFFECT: tuple[Effect, ...] = ("reporting", "limits", "start", "cadence")
MAX_NAMED = 3


def measured_for(config: RunConfig) -> MeasuredFor:
    """Return the config that facts are being measured for."""
    return MeasuredFor(config_digest=digest(config), keys=_keys_affecting_measurements(config))


def facts_for(facts: Facts, config: RunConfig) -> Facts:
    """Return the facts, with measurements for a different config turned into missing groups.

    Facts that do not record their config are returned unchanged.
    """
    facts = _drop_other_resume_facts(facts, config.trainer.resume_from_checkpoint)
    if facts.measured_for is None:
        return facts
    now = _keys_affecting_measurements(config)
    # A key that is missing in the recorder's schema had its default value.
    then = _keys_affecting_measurements(RunConfig()) | facts.measured_for.keys
    differing = [
        f"{key} {then.get(key, 'absent')}, now {value}"
        for key, value in now.items()
        if then.get(key) != value
    ]
    if differing:
        return _drop_run_dependent_facts(facts, differing)
    return _replace_rank_digests(facts, facts.measured_for.config_digest, digest(config))


def _drop_other_resume_facts(facts: Facts, requested: str) -> Facts:
    if facts.resume is None or facts.resume.selector == requested:
        return facts
    reason = f"recorded for trainer.resume_from_checkpoint {facts.resume.selector}, not {requested}"
    kept = [probe for probe in facts.probes if probe.name != "resume"]
    incomplete = ProbeRecord(name="resume", status="incomplete", reason=reason)
    return replace(facts, probes=(*kept, incomplete), resume=None)


def _keys_affecting_measurements(config: RunConfig) -> dict[str, str]:
    """Return the values, as JSON, of the config keys that affect measurements."""
    shaping = without_effects(flatten(to_dict(config)), WITHOUT_EFFECT)
    return {key: json.dumps(value) for key, value in shaping.items()}


def _drop_run_dependent_facts(facts: Facts, differing: list[str]) -> Facts:
    more = len(differing) - MAX_NAMED
    named = [*differing[:MAX_NAMED], *([f"and {more} more"] if more > 0 else [])]
    reason = f"measured for another config: {'; '.join(named)}"
    dropped: dict[str, Any] = {name: None for name in RUN_DEPENDENT if getattr(facts, name) is not None}
    kept = [probe for probe in facts.probes if probe.name not in dropped]
    incomplete = [ProbeRecord(name=group, status="incomplete", reason=reason) for group in dropped]
    return replace(facts, probes=(*kept, *incomplete), **dropped)


def _replace_rank_digests(facts: Facts, before: str, now: str) -> Facts:
    """Replace the config digest `before` of the ranks by `now`.

    Both configs differ only in keys that do not affect measurements.
    """
    if facts.distributed is None:
        return facts
    ranks = (
        replace(rank, config_digest=now) if rank.config_digest == before else rank
        for rank in facts.distributed.ranks
    )
    return replace(facts, distributed=replace(facts.distributed, ranks=tuple(ranks)))
