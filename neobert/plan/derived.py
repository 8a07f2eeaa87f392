"""Types of the plan: derived values with reasons, measurements, and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from neobert.units import BYTES_PER_MIB

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Derived(Generic[T]):
    """Value derived from the config, and the reason: the config keys and numbers it was computed from."""

    value: T
    reason: str


Values: TypeAlias = dict[str, Derived[Any]]
"""Derived values by field name of `Plan`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a run of this config, which replace estimates.

    Attributes:
        step_time_s: seconds per optimizer step, or None if only memory was measured.
        memory_mib: peak memory of the fullest device, or None if only time was measured.
        source: origin of the numbers, for reports.
    """

    step_time_s: float | None
    memory_mib: float | None
    source: str


class EpochSize(NamedTuple):
    """Size of one epoch, over all ranks.

    Attributes:
        num_microbatches: microbatches of training.
        source: how the size was determined, for reports.
        held_out_tokens: tokens of the text that are held out for evaluation, or None if unknown.
    """

    num_microbatches: int
    source: str
    held_out_tokens: float | None = None


class Start(NamedTuple):
    """Step that a run starts from; 0 if it starts from no checkpoint.

    Attributes:
        continued_step: last step of another run that this one continues on other text; 0 if none.
    """

    step: int = 0
    continued_step: int = 0


AFRESH = Start()


def bytes_to_mib(num_bytes: float) -> float:
    """Convert bytes to MiB."""
    return num_bytes / BYTES_PER_MIB
