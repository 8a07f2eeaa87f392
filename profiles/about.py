"""Description of a profile: kind, required hardware and expected performance."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from neobert.schema_fields import ConfigSection, NonEmpty, NonNegativeInt, PositiveFloat, gt, le

Kind = Literal["production", "development", "smoke", "base"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Requirements(ConfigSection):
    """Hardware that a profile is written for.

    Attributes:
        gpu: substring of the device name, such as A100; null for any GPU.
        num_gpus: number of devices over all nodes.
        gpu_memory_gib: minimum memory of each device.
        min_compute_capability: major and minor version, e.g. [8, 0].
    """

    device: Literal["cpu", "cuda"] = "cuda"
    gpu: str | None = None
    num_gpus: NonNegativeInt = 1
    gpu_memory_gib: PositiveFloat | None = None
    min_compute_capability: tuple[NonNegativeInt, NonNegativeInt] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Expectations(ConfigSection):
    """Expected performance of a run with the profile.

    Attributes:
        mfu: share of the device's peak FLOP/s reached by the model's FLOPs.
        tokens_per_second: lowest and highest throughput over all devices.
        is_estimate: whether the performance was estimated and not measured on that hardware.
    """

    mfu: Annotated[float, gt(0), le(1)] = 0.3
    tokens_per_second: tuple[PositiveFloat, PositiveFloat] | None = None
    is_estimate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProfileAbout(ConfigSection):
    """The `about:` section of a profile file."""

    name: NonEmpty
    kind: Kind
    intent: NonEmpty
    requires: Requirements = field(default_factory=Requirements)
    expects: Expectations = field(default_factory=Expectations)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProfileHead(ConfigSection):
    """Sections of a profile file that a run file does not have."""

    about: ProfileAbout
