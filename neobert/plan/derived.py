"""Types of the plan: derived values with reasons, measurements, and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from neobert.units import BYTES_PER_MIB

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Derived(Generic[T]):
    """Value derived from the config, with a reason that names the inputs."""

    value: T
    reason: str


Values: TypeAlias = dict[str, Derived[Any]]
"""Derived values by the name of the plan's field."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a run of this config, which replace estimates.

    Attributes:
        step_time_s: seconds per optimizer step, or None if only memory was measured.
        memory_mib: peak memory of the fullest device, or None.
        source: origin of the numbers, for reports.
    """

    step_time_s: float | None
    memory_mib: float | None
    source: str


@dataclass(frozen=True, slots=True)
class EpochSize:
    """Microbatches of one epoch over all ranks. `source` is the reason."""

    num_microbatches: int
    source: str


def mib(num_bytes: float) -> float:
    """Convert bytes to MiB."""
    return num_bytes / BYTES_PER_MIB
