"""Which config facts were measured for, and what they say of another one: nothing that it shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from neobert.config import digest, to_dict
from neobert.config.canonical import flatten
from neobert.config.effects import without_effects
from neobert.config.schema import Effect, RunConfig
from validators.facts import Facts, MeasuredFor, ProbeRecord

RUN_DEPENDENT = ("distributed", "inspection", "numerics", "rehearsal")
# A measurement holds for every run that differs from the measured one in these alone.
WITHOUT_EFFECT: tuple[Effect, ...] = ("reporting", "start", "cadence")
MOST_NAMED = 3


def measured_for(config: RunConfig) -> MeasuredFor:
    """Say which config facts are being measured for."""
    return MeasuredFor(config_digest=digest(config), keys=_shaping(config))


def held_to(facts: Facts, config: RunConfig) -> Facts:
    """Return what the facts say of this config; what only another one's run could tell was not measured.

    Facts that name no config are taken at their word.
    """
    facts = _without_another_resume(facts, config.trainer.resume_from_checkpoint)
    if facts.measured_for is None:
        return facts
    now = _shaping(config)
    # A key that the recorder's schema had not was what it is by default.
    then = _shaping(RunConfig()) | facts.measured_for.keys
    differing = [
        f"{key} {then.get(key, 'absent')}, here {value}"
        for key, value in now.items()
        if then.get(key) != value
    ]
    if differing:
        return _without_the_run(facts, differing)
    return _renamed(facts, facts.measured_for.config_digest, digest(config))


def _without_another_resume(facts: Facts, asked: str) -> Facts:
    if facts.resume is None or facts.resume.selector == asked:
        return facts
    reason = f"recorded for trainer.resume_from_checkpoint {facts.resume.selector}, here {asked}"
    kept = [probe for probe in facts.probes if probe.name != "resume"]
    told = ProbeRecord(name="resume", status="incomplete", reason=reason)
    return replace(facts, probes=(*kept, told), resume=None)


def _shaping(config: RunConfig) -> dict[str, str]:
    """The keys that shape a measurement, each value as JSON."""
    shaping = without_effects(flatten(to_dict(config)), WITHOUT_EFFECT)
    return {key: json.dumps(value) for key, value in shaping.items()}


def _without_the_run(facts: Facts, differing: list[str]) -> Facts:
    more = len(differing) - MOST_NAMED
    named = [*differing[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
    reason = f"measured for another config: {'; '.join(named)}"
    gone: dict[str, Any] = {name: None for name in RUN_DEPENDENT if getattr(facts, name) is not None}
    kept = [probe for probe in facts.probes if probe.name not in gone]
    told = [ProbeRecord(name=group, status="incomplete", reason=reason) for group in gone]
    return replace(facts, probes=(*kept, *told), **gone)


def _renamed(facts: Facts, before: str, now: str) -> Facts:
    """Ranks that read the config of the recording read all that counts of this one."""
    if facts.distributed is None:
        return facts
    ranks = (
        replace(rank, config_digest=now) if rank.config_digest == before else rank
        for rank in facts.distributed.ranks
    )
    return replace(facts, distributed=replace(facts.distributed, ranks=tuple(ranks)))
