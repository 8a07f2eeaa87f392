"""Speed-relevant keys that differ between a run and the measured run of its profile."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from neobert.config.canonical import flatten, to_plain
from neobert.config.schema import RunConfig
from profiles.registry import ResolvedRun

OF_SPEED = (
    "model",
    "distributed",
    "dataset.max_seq_length",
    "datacollator",
    "optimizer.name",
    "trainer.per_device_train_batch_size",
    "trainer.gradient_checkpointing",
    "trainer.mixed_precision",
    "trainer.torch_compile",
)
"""Keys and sections that determine the speed, compared if the profile's speed was measured."""
KERNELS = ("model.attn_backend", "model.kernel_backend")
OF_AN_ESTIMATE = (*KERNELS, "trainer.torch_compile", "distributed")
"""Keys and sections that are compared if the profile's MFU is an estimate."""
WITHOUT_COST = (
    "init",
    "embedding_init_range",
    "decoder_init_range",
    "embedding_multiplier",
    "pretrained_checkpoint",
    "revision",
)
"""Keys of the section `model` that do not change the speed."""


def keys_differing_from_profile(run: ResolvedRun) -> tuple[str, ...]:
    """Return `KEY VALUE, not VALUE` (the profile's, the run's) for each differing key that affects speed."""
    return tuple(_iterate_differing_keys(run))


def _iterate_differing_keys(run: ResolvedRun) -> Iterator[str]:
    if run.profile is None:
        return
    relevant = OF_AN_ESTIMATE if run.profile.expects.is_estimate else OF_SPEED
    sections = tuple(f"{each}." for each in relevant)
    other = run.profile.config
    names = {each.partition(".")[0] for each in relevant}
    differing = [name for name in names if getattr(run.config, name) != getattr(other, name)]
    own, recorded = _flatten_sections(run.config, differing), _flatten_sections(other, differing)
    changed = (key for key in own.keys() | recorded.keys() if own.get(key) != recorded.get(key))
    for key in sorted(changed):
        is_chosen = key not in KERNELS or own.get(key) is not None  # a transformers model may leave them out
        is_relevant = key.startswith(sections) or key in relevant
        if is_chosen and is_relevant and key.rpartition(".")[2] not in WITHOUT_COST:
            yield f"{key} {_format_value(recorded.get(key))}, not {_format_value(own.get(key))}"


def _flatten_sections(config: RunConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of these sections by dotted key."""
    return flatten({name: to_plain(getattr(config, name)) for name in names})


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
