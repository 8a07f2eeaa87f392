"""Schema: one frozen, slotted dataclass per section. It holds requested values, never derived ones.

The JSON Schema, `explain` and the reference pages are generated from the keys' descriptions. The effect of a
change of a key decides whether a resume allows it, whether measurements still apply, and whether `bench`
lists it. Bounds and closed sets are checked at hydration; relations between keys are checked by rules.
"""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from neobert.config.schema.adapter import AdapterConfig
from neobert.config.schema.data import (
    DataCollatorConfig,
    DatasetConfig,
    MixtureCorpus,
    TokenizerConfig,
)
from neobert.config.schema.model import HfModelConfig, ModelConfig, NsaModelConfig
from neobert.config.schema.operation import (
    DistributedConfig,
    GuardConfig,
    PrometheusConfig,
    TrackioConfig,
    Waiver,
    WandbConfig,
    WatchdogConfig,
)
from neobert.config.schema.plugins import PluginsConfig
from neobert.config.schema.training import OptimizerConfig, SchedulerConfig, TrainerConfig
from neobert.precision.libraries import LIBRARIES
from neobert.schema_fields import (
    PER_KEY,
    ConfigSection,
    NonNegativeInt,
    field_metadata,
    key,
    require_effects,
    section,
)
from neobert.tasks.table import TASKS
from neobert.trackers.table import NAMES as TRACKER_NAMES

if TYPE_CHECKING:
    TaskName = str
    TrackerName = str
else:  # type checkers reject a computed Literal
    TaskName = Literal[tuple(TASKS)]
    TrackerName = Literal[TRACKER_NAMES]

__all__ = [
    "AdapterConfig",
    "DataCollatorConfig",
    "DatasetConfig",
    "DistributedConfig",
    "GuardConfig",
    "HfModelConfig",
    "MixtureCorpus",
    "ModelConfig",
    "NsaModelConfig",
    "OptimizerConfig",
    "PluginsConfig",
    "PrometheusConfig",
    "RunConfig",
    "SchedulerConfig",
    "TokenizerConfig",
    "TrackioConfig",
    "TrainerConfig",
    "Waiver",
    "WandbConfig",
    "WatchdogConfig",
]

T = TypeVar("T")


def add_table_sections(kind: type[T]) -> type[T]:
    """Add the section of each task that has one, and of each library of low precision, under its name."""
    for library in LIBRARIES.values():
        kind.__annotations__[library.name] = library.section
        setattr(kind, library.name, section(library.section, library.about, affects="numerics"))
    for task in TASKS.values():
        if task.section:
            kind.__annotations__[task.name] = task.section
            setattr(kind, task.name, section(task.section, task.about, affects=PER_KEY))
    return kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
@add_table_sections
class RunConfig(ConfigSection):
    """Configuration of one run."""

    profile: str | None = key(None, "Named profile that the run builds on.", affects="reporting")
    task: TaskName = key(next(iter(TASKS)), "Training task.", affects="model")
    seed: NonNegativeInt = key(0, "Seed of weight initialization, data order and masking.", affects="data")
    variables: dict[str, Any] = field(
        default_factory=dict,
        metadata=field_metadata("Values that other keys refer to as $variables.name.", "reporting"),
    )
    model: ModelConfig | HfModelConfig | NsaModelConfig = section(
        ModelConfig, "The encoder.", affects="model"
    )
    tokenizer: TokenizerConfig = section(TokenizerConfig, "The tokenizer.", affects="data")
    dataset: DatasetConfig = section(DatasetConfig, "Training and evaluation text.", affects="data")
    datacollator: DataCollatorConfig = section(DataCollatorConfig, "Packing and masking.", affects="data")
    adapter: AdapterConfig = section(
        AdapterConfig, "Adapter (LoRA) trained with a frozen encoder, for tasks with labels.", affects=PER_KEY
    )
    plugins: PluginsConfig = section(PluginsConfig, "User-defined functions.", affects="data")
    optimizer: OptimizerConfig = section(OptimizerConfig, "Optimizer.", affects="numerics")
    scheduler: SchedulerConfig = section(SchedulerConfig, "Learning rate schedule.", affects="numerics")
    trainer: TrainerConfig = section(TrainerConfig, "Training loop.", affects=PER_KEY)
    distributed: DistributedConfig = section(
        DistributedConfig, "Number of processes and their parallelism.", affects="machine"
    )
    trackers: tuple[TrackerName, ...] = key(
        ("jsonl",),
        "Trackers that receive the metrics; metrics.jsonl (jsonl) is always written.",
        affects="reporting",
    )
    wandb: WandbConfig = section(WandbConfig, "Weights & Biases.", affects="reporting")
    trackio: TrackioConfig = section(TrackioConfig, "Trackio.", affects="reporting")
    prometheus: PrometheusConfig = section(PrometheusConfig, "Prometheus.", affects="reporting")
    guard: GuardConfig = section(GuardConfig, "Limits enforced before and during training.", affects="limits")
    watchdog: WatchdogConfig = section(WatchdogConfig, "Hang detection and restarts.", affects="limits")
    waivers: tuple[Waiver, ...] = key(
        (), "Accepted findings, with a reason and an expiry date.", affects="limits"
    )


require_effects(RunConfig)
