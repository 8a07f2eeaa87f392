"""Keys that a run must share with the checkpoint that it resumes from.

Structural keys determine the weights, the order of the samples or the loss: a change makes another run. The
others may change between sessions and are only logged. Text and tokenizer are compared by the digest of
their content, not by path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.keys import effect_of, is_compared_by_content
from neobert.config.schema import RunConfig

POSITIONS = "model.max_position_embeddings"
MICROBATCHES = "trainer.gradient_accumulation_steps x distributed.nproc_per_node x distributed.nnodes"

FACTORS = ("trainer.gradient_accumulation_steps", "distributed.nproc_per_node", "distributed.nnodes")
WARMED_UP_BY = "distributed.nproc_per_node x distributed.nnodes (batch-size warm-up)"
RATE = ("optimizer.lr", "trainer.max_steps", "trainer.max_epochs")
SCHEDULE = (*RATE, "trainer.early_stopping_patience")
ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Difference:
    """Key whose value differs between the checkpoint and the run."""

    key: str
    saved: Any
    current: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.saved!r} in the checkpoint, {self.current!r} in this run"


def structural_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences of two canonical configs that forbid resuming one from the other."""
    return tuple(each for each in differences(saved, current) if is_structural(each.key))


def runtime_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences of two canonical configs that do not prevent a resume."""
    return tuple(each for each in differences(saved, current) if not is_structural(each.key))


def numeric_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences that change the loss or its updates from the next step on.

    Excludes keys of the schedule: their effect, the learning rate of that step, is compared directly.
    """
    return tuple(each for each in runtime_differences(saved, current) if _is_numeric(each.key))


def has_same_schedule(saved: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Return whether no key differs that determines the learning rate of a step of the same data."""
    return not any(_is_of_rate(each.key) for each in runtime_differences(saved, current))


def _is_of_rate(key: str) -> bool:
    return key in RATE or key.startswith("scheduler.")


def _is_numeric(key: str) -> bool:
    return effect_of(key) == "numerics" and key not in SCHEDULE and not key.startswith("scheduler.")


def is_structural(key: str) -> bool:
    """Return whether a change of the key makes another run."""
    is_shaping = effect_of(key) in ("model", "data") and not is_compared_by_content(key)
    return key in (MICROBATCHES, WARMED_UP_BY) or is_shaping


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield all differences of two canonical configs, by key."""
    left, right = _comparable(saved), _comparable(current)
    for key in sorted(left.keys() | right.keys()):
        if left.get(key, ABSENT) != right.get(key, ABSENT):
            yield Difference(key, left.get(key, ABSENT), right.get(key, ABSENT))


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten to dotted keys, and add the microbatches of a step: their factors may be split differently.

    Rotary positions have no weights, so the length of a row is then not part of the model. A key that an
    older version did not have counts with its default.
    """
    flat = DEFAULTS | flatten(config)
    if flat.get("model.rope", True):
        flat.pop(POSITIONS, None)
    elif flat.get(POSITIONS) is None:
        flat[POSITIONS] = flat.get("datacollator.max_length") or flat.get("dataset.max_seq_length")
    factors = [flat.get(factor, 1) for factor in FACTORS]
    product = math.prod(factors) if all(type(factor) is int for factor in factors) else ABSENT
    # The first steps have one microbatch per rank: another split of the same product has other steps.
    ranks = factors[1:] if flat.get("trainer.batch_size_warmup_steps") else None
    return flat | {MICROBATCHES: product, WARMED_UP_BY: ranks}


DEFAULTS = flatten(to_dict(RunConfig()))
