"""Config sections for operating a run: processes, trackers, limits, hang detection and waivers."""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Literal

from neobert.schema_fields import (
    ConfigSection,
    NonEmpty,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Silence,
    ge,
    gt,
    key,
    le,
    min_length,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DistributedConfig(ConfigSection):
    """Number of processes, and how they share the model."""

    nproc_per_node: PositiveInt = key(1, "Processes per node, one per device.")
    nnodes: PositiveInt = key(1, "Number of nodes.")
    mode: Literal["replicated", "fsdp2"] = key(
        "replicated",
        "Several processes: replicated keeps the whole model on each and averages gradients; fsdp2 shards "
        "parameters, gradients and optimizer state.",
    )
    replicas: PositiveInt = key(
        1,
        "fsdp2: copies of the model, each sharded over (processes / replicas) neighbouring processes. With "
        "one copy per node, only gradients cross the network.",
    )
    reshard_after_forward: bool | None = key(
        None,
        "fsdp2: free the gathered parameters of a block after its forward, and gather them again for its "
        "backward. A rank then holds one block at a time and not the whole model, for 1.5 times the "
        "communication. Null: only if the whole model does not fit.",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WandbConfig(ConfigSection):
    """Weights & Biases (`trackers: [wandb]`)."""

    enabled: bool = key(False, "Report to Weights & Biases; equivalent to wandb in trackers.")
    project: str = key("neobert", "Project.")
    entity: str | None = key(None, "Team or user.")
    name: str | None = key(None, "Run name; null: the run directory's name.")
    mode: Literal["online", "offline"] = key(
        "online", "online: upload during the run; offline: write locally, for a later upload."
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrackioConfig(ConfigSection):
    """Trackio (`trackers: [trackio]`)."""

    project: NonEmpty = key("neobert", "Project.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PrometheusConfig(ConfigSection):
    """Textfile collector of Prometheus' node_exporter (`trackers: [prometheus]`)."""

    textfile: NonEmpty | None = key(
        None,
        "File in the collector's folder, ending in .prom; null: metrics.prom in the run directory.",
        is_path=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GuardConfig(ConfigSection):
    """Limits enforced before and during training."""

    max_lost_minutes: Annotated[float, gt(0), le(240)] = key(
        60.0, "Maximum work lost on a crash, in minutes; more than 240 requires a waiver of CKP002."
    )
    walltime_limit_hours: PositiveFloat | None = key(None, "Time limit of the run, in hours; null: none.")
    price_per_gpu_hour: NonNegativeFloat | None = key(
        None, "Price of a GPU hour in any currency, for the cost in the plan.", affects="reporting"
    )
    receipt_ttl_hours: Annotated[float, gt(0), le(168)] = key(
        24.0, "Validity of a preflight receipt, in hours; at most a week."
    )
    loss_spike_factor: Annotated[float, gt(1)] | None = key(
        10.0, "Loss of a step, relative to the recent mean, that counts as a spike; null: disabled."
    )
    on_loss_spike: Literal["stop", "warn"] = key(
        "stop",
        "Action on a loss spike. stop: end the run before the optimizer step; warn: record the batches and "
        "continue.",
    )
    on_degradation: Literal["stop", "warn"] = key(
        "stop",
        "Action when recompiles or kernel fallbacks grew in 3 of the last 20 logging lines: stop saves a "
        "checkpoint and ends the run with exit code 4, warn only logs. Smoke profiles warn.",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WatchdogConfig(ConfigSection):
    """Hang detection and restarts.

    A timeout is the maximum time without progress of any rank. Once a phase has been observed, its timeout is
    ten times the longest observed duration, within these limits.
    """

    start_limit_s: Silence = key(
        1800.0,
        "Timeout of the start, before the first step: processes, data, model; in seconds, at most a week.",
    )
    compile_limit_s: Silence = key(
        3600.0, "Timeout of the first steps of a session, which compile; in seconds, at most a week."
    )
    step_limit_s: Silence = key(1800.0, "Timeout of a later step; in seconds, at most a week.")
    data_wait_limit_s: Silence = key(
        1800.0, "Timeout of waiting for data or other ranks; in seconds, at most a week."
    )
    evaluation_limit_s: Silence = key(
        1800.0, "Timeout of an evaluation microbatch; in seconds, at most a week."
    )
    save_limit_s: Silence = key(3600.0, "Timeout of a save that blocks training; in seconds, at most a week.")
    learned_floor_s: Silence = key(
        180.0, "Lower bound of timeouts learned from the run; in seconds, at most a week."
    )
    grace_s: Annotated[float, ge(0), le(3600)] = key(
        30.0, "Grace period between SIGTERM and SIGKILL, in seconds."
    )
    max_restarts: Annotated[int, ge(0), le(100)] = key(
        3, "Maximum number of restarts from the same checkpoint; 0: no restarts."
    )
    heartbeat_interval_s: Annotated[float, gt(0), le(600)] = key(
        10.0, "Maximum time between two heartbeats of a rank, in seconds; hangs are not detected sooner."
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Waiver(ConfigSection):
    """Accepted finding, with a reason and an expiry date."""

    code: NonEmpty = field(metadata={"description": "Code of the rule that is waived."})
    reason: Annotated[str, min_length(10)] = field(metadata={"description": "Reason, in a sentence."})
    expires: date = field(metadata={"description": "Last day on which the waiver is valid."})
