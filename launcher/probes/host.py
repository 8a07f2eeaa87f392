"""Memory, processors, limits and clock of this host, as available to this process.

Runs are not started through accelerate, so its config file has no effect; rules report its settings.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from launcher.io.files import expand_user
from launcher.probes.probe import IncompleteError
from neobert.units import BYTES_PER_MIB
from validators.facts_host import AccelerateFileFacts, HostFacts

CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")
RECORDED_PREFIXES = (
    "ACCELERATE_",
    "NCCL_",
    "NVTE_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "OMP_",
    "SLURM_JOB_",
    "TOKENIZERS_",
    "HF_HUB_",
    "HF_DATASETS_",
)
RECORDED = (
    "FSDP_VERSION",
    "TORCHDYNAMO_DISABLE",
    "TRITON_INTERPRET",
    "HF_HOME",
    "NEOBERT_CACHE",
    "NEOBERT_PROFILE_PATH",
    "WANDB_MODE",
    "WORLD_SIZE",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
)
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")
OWN_PACKAGE = Path(__file__).parents[1]
TIME_ERROR = 5
"""Returned by adjtimex(2) if the clock is not synchronized."""
TIMEX_BYTES = 512
"""More than `struct timex` takes on any platform. All zero: nothing is set, the state is only read."""

CONFIG_FILE_ENV = "ACCELERATE_CONFIG_FILE"
DEFAULT_NAMES = ("default_config.yaml", "default_config.json")
MAX_BYTES = 64 * 1024
MAX_VALUE_LENGTH = 40


def probe_host() -> HostFacts:
    """Read the memory, processors, limits and clock; memory is the container's if its limit is lower."""
    memory = psutil.virtual_memory()
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    total = min(memory.total, limit or memory.total)
    available = min(memory.available, max(0, limit - (used or 0)) if limit else memory.available)
    return HostFacts(
        hostname=socket.gethostname(),
        cpu_count=len(os.sched_getaffinity(0)),
        ram_total_mib=total // BYTES_PER_MIB,
        ram_available_mib=available // BYTES_PER_MIB,
        shm_free_mib=_shared_memory_free() // BYTES_PER_MIB,
        open_files_limit=_open_files_limit(),
        environment=recorded_environment(os.environ),
        clock_behind_s=clock_behind_s(),
        is_clock_synchronized=is_clock_synchronized(),
        accelerate_file=probe_accelerate_file(os.environ),
    )


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a run, sorted by name, except variables that may hold a secret."""
    chosen = {
        name: value
        for name, value in environment.items()
        if name in RECORDED or name.startswith(RECORDED_PREFIXES)
    }
    return {
        name: value
        for name, value in sorted(chosen.items())
        if not any(word in name for word in SECRET_WORDS)
    }


def _cgroup_bytes(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _shared_memory_free() -> int:
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        raise IncompleteError(f"{SHARED_MEMORY}: {error.strerror}") from None
    return status.f_bavail * status.f_frsize


def _open_files_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 2**31 - 1


def clock_behind_s(package: Path = OWN_PACKAGE) -> float:
    """Return the seconds by which the clock is behind the package's newest file; 0.0 if it is not behind."""
    newest_s = max((file.stat().st_mtime for file in package.rglob("*.py")), default=0.0)
    return max(0.0, newest_s - time.time())


def is_clock_synchronized() -> bool | None:
    """Return whether the clock is synchronized, or None if the kernel does not report it, as in a sandbox."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != TIME_ERROR


def probe_accelerate_file(environment: Mapping[str, str]) -> AccelerateFileFacts | None:
    """Read the file in ACCELERATE_CONFIG_FILE, or else the default file; return None if there is no file."""
    named = environment.get(CONFIG_FILE_ENV, "")
    if named:
        return _read_accelerate_file(expand_user(named), is_named=True)
    # `Path.is_file` raises without permission.
    default = next((path for path in _default_config_files(environment) if os.path.isfile(path)), None)
    return None if default is None else _read_accelerate_file(default, is_named=False)


def _default_config_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the possible paths of the default file that `accelerate config` writes."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = expand_user(environment.get("HF_HOME") or f"{cache}/huggingface")
    return [home / "accelerate" / name for name in DEFAULT_NAMES]


def _read_accelerate_file(path: Path, *, is_named: bool) -> AccelerateFileFacts:
    try:
        content = _parse_accelerate_file(path)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        return AccelerateFileFacts(path=str(path), is_named=is_named, error=_error_text(error))
    fsdp = content.get("fsdp_config")
    return AccelerateFileFacts(
        path=str(path),
        is_named=is_named,
        distributed_type=_setting_text(content, "distributed_type"),
        fsdp_version=_setting_text(fsdp, "fsdp_version") if isinstance(fsdp, dict) else "",
    )


def _parse_accelerate_file(path: Path) -> dict[Any, Any]:
    """Parse the file as YAML, a superset of JSON.

    Raises ValueError if it is not a regular file, larger than `MAX_BYTES`, or not a mapping.
    """
    if not path.is_file():
        raise ValueError("not a regular file" if path.exists() else "no such file")
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES:,} bytes")
    content = yaml.safe_load(raw.decode("utf-8", errors="replace"))
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def _setting_text(content: dict[Any, Any], key: str) -> str:
    value = content.get(key)
    return str(value)[:MAX_VALUE_LENGTH] if isinstance(value, str | int) else ""


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) if isinstance(error, ValueError) else "not YAML"
