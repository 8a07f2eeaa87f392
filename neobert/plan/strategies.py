"""Unsupported parallelism or device settings of accelerate, in environment variables or its config file."""

from __future__ import annotations

from collections.abc import Mapping

FOREIGN = {
    "ACCELERATE_USE_FSDP": "FSDP by accelerate",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism by accelerate",
    "ACCELERATE_USE_CPU": "a CPU in place of the device",
}
DEVICE = "ACCELERATE_TORCH_DEVICE"
DEFAULT_FSDP_VERSION = "1"
FOREIGN_HINT = (
    "unset the variable; distributed.mode sets how ranks share the model (replicated or fsdp2), and the "
    "profile sets the device"
)
FILE_STRATEGIES = {"DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
YES = ("true", "1", "yes", "on", "y", "t")


def foreign_strategies(environment: Mapping[str, str]) -> list[str]:
    """List the enabled settings of accelerate, such as `FSDP 1 by accelerate (ACCELERATE_USE_FSDP)`."""
    switched_on = [
        f"{_versioned_name(name, environment)} ({variable})"
        for variable, name in FOREIGN.items()
        if environment.get(variable, "").lower() in YES
    ]
    device = environment.get(DEVICE)
    return [*switched_on, *([f"the device {device} ({DEVICE})"] if device else [])]


def foreign_strategy_in_file(distributed_type: str, fsdp_version: str) -> str:
    """Return the name of the unsupported parallelism in an accelerate config file; empty if there is none."""
    if distributed_type.upper() == "FSDP":
        version = fsdp_version or DEFAULT_FSDP_VERSION
        return f"FSDP {version} by accelerate" if version == DEFAULT_FSDP_VERSION else ""
    return FILE_STRATEGIES.get(distributed_type.upper(), "")


def _versioned_name(name: str, environment: Mapping[str, str]) -> str:
    if not name.startswith("FSDP"):
        return name
    return name.replace("FSDP", f"FSDP {environment.get('FSDP_VERSION', DEFAULT_FSDP_VERSION)}", 1)
