"""Which config facts were measured for, and what they say of another one: nothing that it shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from neobert.config import digest, to_dict
from neobert.config.schema import RunConfig
from neobert.receipt import flatten
from validators.facts import Facts, MeasuredFor, ProbeRecord

RUN_DEPENDENT = ("distributed", "inspection", "numerics", "rehearsal")
# How a run is named, guarded and watched, and what a rehearsal sets otherwise, changes nothing of what it
# measures. Every other key counts, one that is new in the schema too.
SECTIONS_APART = ("guard", "profile", "variables", "waivers", "wandb", "watchdog")
KEYS_APART = (
    "trainer.eval_steps",
    "trainer.logging_steps",
    "trainer.memory_snapshot_step",
    "trainer.metric_for_best_model",
    "trainer.greater_is_better",
    "trainer.output_dir",
    "trainer.overwrite_output_dir",
    "trainer.profile_steps",
    "trainer.resume_from_checkpoint",
    "trainer.save_keep_every",
    "trainer.save_steps",
    "trainer.save_total_limit",
)
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
    differing = [f"{key} {then[key]}, here {now[key]}" for key in now if then[key] != now[key]]
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
    return {
        key: json.dumps(value)
        for key, value in flatten(to_dict(config)).items()
        if key.partition(".")[0] not in SECTIONS_APART and key not in KEYS_APART
    }


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
