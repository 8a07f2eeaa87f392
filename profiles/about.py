"""What a profile says about itself: its kind, the hardware it requires, what it expects of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Le, MinLen

from neobert.config.schema import STRICT, NonNegativeInt, PositiveFloat

Kind = Literal["production", "smoke", "base"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The hardware that a profile is written for.

    Attributes:
        gpu: part of the device's name, such as A100; null for any.
        num_gpus: devices over all nodes.
        gpu_memory_gib: memory of each device, at least.
        min_compute_capability: major and minor, such as [8, 0].
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    device: Literal["cpu", "cuda"] = "cuda"
    gpu: str | None = None
    num_gpus: NonNegativeInt = 1
    gpu_memory_gib: PositiveFloat | None = None
    min_compute_capability: tuple[NonNegativeInt, NonNegativeInt] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What a run of the profile should reach.

    Attributes:
        mfu: share of the device's peak that the arithmetic of the model reaches.
        tokens_per_second: lowest and highest rate over all devices.
        is_estimate: not measured on that hardware yet.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    mfu: Annotated[float, Gt(0), Le(1)] = 0.3
    tokens_per_second: tuple[PositiveFloat, PositiveFloat] | None = None
    is_estimate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The `about:` section of a profile file."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Annotated[str, MinLen(1)]
    kind: Kind
    intent: Annotated[str, MinLen(1)]
    requires: Requirements = field(default_factory=Requirements)
    expects: Expectations = field(default_factory=Expectations)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileHead:
    """What a profile file has beside the sections of a run."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    about: About
