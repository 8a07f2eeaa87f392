"""Config keys that must be equal in a run and the checkpoint that it resumes from.

Structural keys determine the weights, the order of the samples or the loss and must not change. All other
keys may change between sessions, which is logged. Text and tokenizer are compared by content, not by path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from neobert.config import to_dict
from neobert.config.canonical import flatten, to_plain
from neobert.config.keys import is_compared_by_content, key_effect
from neobert.config.removed_keys import LEGACY_DEFAULTS, REMOVED, without_removed
from neobert.config.schema import HfModelConfig, RunConfig

POSITIONS = "model.max_position_embeddings"
MICROBATCHES = "trainer.gradient_accumulation_steps x distributed.nproc_per_node x distributed.nnodes"

FACTORS = ("trainer.gradient_accumulation_steps", "distributed.nproc_per_node", "distributed.nnodes")
WARMED_UP_BY = "distributed.nproc_per_node x distributed.nnodes (batch-size warm-up)"
MIXED = "dataset.mixture (shares of the tokens)"
RATE = ("optimizer.lr", "trainer.max_steps", "trainer.max_epochs")
SCHEDULE = (*RATE, "trainer.early_stopping_patience")
TRAINED_TOKENIZER = tuple(
    f"tokenizer.{name}" for name in ("vocab_size", "algorithm", "lowercase", "strip_accents")
)
"""Keys of a tokenizer that the run trains; without effect on one that exists."""
ABSENT, MODEL_TYPE = "absent", "model.type"


class Difference(NamedTuple):
    """Config key whose value differs between a checkpoint and the current run."""

    key: str
    saved: Any
    current: Any

    def __str__(self) -> str:
        if self.key in REMOVED:
            return f"{self.key}: {_format_value(self.saved)} in the checkpoint; the key was removed"
        saved, current = _format_value(self.saved), _format_value(self.current)
        return f"{self.key}: {saved} in the checkpoint, {current} in this run"


def _format_value(value: object) -> str:
    """Format a value as it is written in a run file."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def structural_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences of two canonical configs in structural keys, which prevent a resume.

    For models of different types, only `model.type` is compared.
    """
    found = tuple(each for each in differences(saved, current) if _prevents_resume(each.key, saved, current))
    if all(each.key != MODEL_TYPE for each in found):
        return found
    return tuple(each for each in found if each.key == MODEL_TYPE or not each.key.startswith("model."))


def _prevents_resume(key: str, saved: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    is_of_trained = key in TRAINED_TOKENIZER and _trains_tokenizer(saved) and _trains_tokenizer(current)
    return is_of_trained or is_structural(key)


def _trains_tokenizer(config: Mapping[str, Any]) -> bool:
    tokenizer = config.get("tokenizer", {})
    return tokenizer.get("path") is None and tokenizer.get("name") is None


def runtime_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences of two canonical configs in other keys, which do not prevent a resume."""
    found = differences(saved, current)
    return tuple(each for each in found if not _prevents_resume(each.key, saved, current))


def numeric_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences that change the loss or the updates after a resume.

    Excludes keys of the learning-rate schedule, because the learning rate itself is compared.
    """
    return tuple(each for each in runtime_differences(saved, current) if _affects_numerics(each.key))


def schedule_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences in keys that determine the learning rate as a function of the step."""
    return tuple(each for each in runtime_differences(saved, current) if _affects_learning_rate(each.key))


def _affects_learning_rate(key: str) -> bool:
    return key in RATE or key.startswith("scheduler.")


def _affects_numerics(key: str) -> bool:
    return key_effect(key) == "numerics" and key not in SCHEDULE and not key.startswith("scheduler.")


def is_structural(key: str) -> bool:
    """Return whether the key must be equal in a run and the checkpoint that it resumes from."""
    is_shaping = key_effect(key) in ("model", "data") and not is_compared_by_content(key)
    return key in (MICROBATCHES, WARMED_UP_BY, MIXED) or is_shaping


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield all differences between two canonical configs, sorted by key."""
    left, right = _comparable_values(saved), _comparable_values(current)
    for key in sorted(left.keys() | right.keys()):
        if left.get(key, ABSENT) != right.get(key, ABSENT):
            yield Difference(key, left.get(key, ABSENT), right.get(key, ABSENT))


def _comparable_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a config to dotted keys; add the microbatches per step over all ranks and the corpora's shares.

    The product is compared instead of its factors, and shares instead of weights. With rotary embeddings, the
    maximum position is left out, because it has no weights, and so is the length of pieces that no step is
    cut into. A key that an older version lacks has the behaviour of that version; one that was removed counts
    if the run had set it.
    """
    flat = DEFAULTS | flatten(without_removed(config, keep_set=True))
    if flat.get("model.rope", True):
        flat.pop(POSITIONS, None)
    elif flat.get(POSITIONS) is None:
        flat[POSITIONS] = flat.get("datacollator.max_length") or flat.get("dataset.max_seq_length")
    factors = [flat.get(factor, 1) for factor in FACTORS]
    product = math.prod(factors) if all(type(factor) is int for factor in factors) else ABSENT
    # The first steps have one microbatch per rank: another split of the same product has other steps.
    if not any(flat.get(f"trainer.sequence_length_warmup_{unit}") for unit in ("steps", "percent")):
        flat.pop("trainer.sequence_length_warmup_length", None)
    ranks = factors[1:] if flat.get("trainer.batch_size_warmup_steps") else None
    weights = [corpus.get("weight", 1.0) for corpus in flat.get("dataset.mixture") or ()]
    total = sum(weights) or 1.0  # weights of 0 are refused in a config, but not in an edited record
    shares = [round(weight / total, 6) for weight in weights]
    return flat | {MICROBATCHES: product, WARMED_UP_BY: ranks, MIXED: shares}


DEFAULTS = {
    **flatten(to_plain(HfModelConfig()), "model."),
    **flatten(to_dict(RunConfig())),
    **LEGACY_DEFAULTS,
}
