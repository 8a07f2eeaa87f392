"""Measurements of a rehearsed run: speed, memory, precision, documents in both splits, config keys read."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import prod
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.profiler import profile

from neobert.bench.device import gpu_uuid
from neobert.config.annotations import section_members, type_hints
from neobert.config.schema import RunConfig
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.families.table import model_shape
from neobert.metric_names import EVAL_LOSS, PACE, TRAIN_LOSS
from neobert.rehearsal.script import RehearsalScript
from neobert.rehearsal.trials import WorstCase, first_batches
from neobert.runfiles.phases import EVALUATION
from neobert.training.state.trainer import Trainer
from neobert.units import BYTES_PER_MIB

MAX_DOCUMENTS = 200_000
# Index of the first factor among the arguments.
FACTORS = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::_addmm_activation": 1,
    "aten::_scaled_mm": 0,
}
NAMES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}
# Copying, comparing, printing or hashing a config is not use, and neither is access by the rehearsal.
BYSTANDERS = (
    "neobert.config",
    "neobert.schema_fields",
    "neobert.rehearsal",
    "dataclasses",
    "copy",
    "builtins",
)
# Schedules and masking rates are defined next to the config that they are computed from.
USERS = ("neobert.config.schedules",)


def gpu_context_mib(device: torch.device) -> tuple[int, bool]:
    """Return GPU memory in use outside the CUDA allocator in MiB, and whether only this process is counted.

    If the driver does not report memory per process, memory of other processes is included.
    """
    reserved, own = torch.cuda.memory_reserved(device), process_gpu_bytes(gpu_uuid(device))
    if own is not None:
        return (own - reserved) // BYTES_PER_MIB, True
    free, total = torch.cuda.mem_get_info(device)
    return (total - free - reserved) // BYTES_PER_MIB, False


def process_gpu_bytes(uuid: str) -> int | None:
    """Return this process's memory on a GPU as NVML reports it; None if unknown, as in some containers."""
    if importlib.util.find_spec("pynvml") is None:
        return None
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
    return next((each.usedGpuMemory for each in running if each.pid == os.getpid()), None)


def train_eval_overlap(prepared: PreparedData) -> dict[str, Any] | None:
    """Measure the share of evaluation tokens whose document is also in the training text.

    For large text, documents at a regular stride are compared; for a stream, its first window. Returns
    None if the run has no evaluation split or no training text.
    """
    if prepared.eval is None:
        return None
    train = prepared.train
    if not isinstance(train, SegmentStore):
        window = train.read_window(None, 0)
        if window is None:
            return None
        train = window.store
    wanted: dict[int, int] = {}
    for document in _document_tokens(prepared.eval):
        wanted[hash(document)] = wanted.get(hash(document), 0) + len(document)
    shared, compared = set[int](), 0
    for document in _document_tokens(train):
        compared += 1
        if hash(document) in wanted:
            shared.add(hash(document))
    return {
        "eval_documents": min(len(prepared.eval), MAX_DOCUMENTS),
        "train_documents": compared,
        "shared_share": sum(wanted[each] for each in shared) / max(1, sum(wanted.values())),
    }


def _document_tokens(store: SegmentStore) -> Iterator[bytes]:
    """Yield the tokens of up to `MAX_DOCUMENTS` documents as bytes of 64-bit integers."""
    stride = -(-len(store) // MAX_DOCUMENTS)
    for number in range(0, len(store), stride):
        yield store.example(number).astype("<i8").tobytes()  # whatever the dtype of the store


@contextmanager
def record_product_flops() -> Iterator[dict[str, float]]:
    """Count the FLOPs of matrix products in the `with` block by the dtype of their inputs.

    The dict is filled after the block. Only torch operators are counted, not this project's kernels.
    """
    flops: dict[str, float] = defaultdict(float)
    with profile(record_shapes=True) as profiler:  # torch.profiler would build a tree of all events, too
        yield flops
    assert profiler.kineto_results is not None
    for event in profiler.kineto_results.events():
        found = _product_flops(event)
        if found:
            flops[found[0]] += found[1]


def _product_flops(event: Any) -> tuple[str, float] | None:
    place = FACTORS.get(event.name())
    if place is None:
        return None
    left, right = event.shapes()[place : place + 2]
    kinds = [NAMES.get(kind, kind) for kind in event.dtypes()[place : place + 2]]
    if not left or not right or not kinds:
        return None
    return kinds[0], 2.0 * prod(left) * right[-1]


def parameter_types(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters by dtype."""
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(counts)


class _RecordedKey:
    """Descriptor that replaces a config dataclass slot and records reads of the key."""

    def __init__(self, slot: Any, key: str, seen: set[str]) -> None:
        self._slot, self._key, self._seen = slot, key, seen

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self
        if not is_ignored_reader(str(sys._getframe(1).f_globals.get("__name__", ""))):
            self._seen.add(self._key)
        return self._slot.__get__(owner, kind)

    def __set__(self, owner: Any, value: Any) -> None:
        self._slot.__set__(owner, value)


def is_ignored_reader(module: str) -> bool:
    """Return whether reads of config keys by this module do not count as use of the key."""
    if module in USERS:
        return False
    return any(module == name or module.startswith(f"{name}.") for name in BYSTANDERS)


@contextmanager
def record_config_reads() -> Iterator[set[str]]:
    """Collect the dotted config keys that this process reads inside the `with` block."""
    seen: set[str] = set()
    slots = [(kind, name, getattr(kind, name), key) for kind, name, key in _section_keys(RunConfig, "")]
    for kind, name, slot, key in slots:
        setattr(kind, name, _RecordedKey(slot, key, seen))
    try:
        yield seen
    finally:
        for kind, name, slot, _ in slots:
            setattr(kind, name, slot)


def _section_keys(kind: Any, prefix: str) -> Iterator[tuple[Any, str, str]]:
    hints = type_hints(kind)
    for field in fields(kind):
        members = section_members(hints[field.name])
        for member in members:
            yield from _section_keys(member, f"{prefix}{field.name}.")
        if not members:
            yield kind, field.name, f"{prefix}{field.name}"


def describe_worst_case(worst: WorstCase) -> dict[str, Any]:
    """Return the sizes of the worst-case microbatches."""
    train, evaluation = worst.train, worst.evaluation
    return {
        "num_tokens": train.num_tokens,
        "longest": train.max_seqlen,
        "num_segments": train.num_segments,
        "num_targets": train.num_targets,
        "num_eval_tokens": None if evaluation is None else evaluation.num_tokens,
    }


def has_mask_with_packing(trainer: Trainer) -> bool | None:
    """Return whether a packed microbatch also has an `attention_mask`, or None for padded rows."""
    inputs = trainer.task.inputs(first_batches(trainer, 1)[0], trainer.world.device)
    return None if inputs.get("cu_seqlens") is None else inputs.get("attention_mask") is not None


def measure_speed(
    trainer: Trainer, rows: Sequence[dict[str, Any]], script: RehearsalScript
) -> dict[str, Any] | None:
    """Return mean speed from warm-up to the first save, and step times, or None if there are no metrics."""
    lines = [row for row in rows if TRAIN_LOSS in row and script.warm_up < row["step"] <= script.saved]
    if not lines:
        return None
    times_s = [row["time/step_ms"] / 1000 for row in lines]
    step_time_s = sum(times_s) / len(times_s)
    tokens = sum(row[PACE] * time_s for row, time_s in zip(lines, times_s, strict=True))
    return {
        "step_time_s": step_time_s,
        "tokens_per_second": tokens / len(lines) / step_time_s,
        "mfu": _mean_of_known(row["perf/mfu"] for row in lines),
        "data_wait_share": _mean_of_known(row["perf/data_wait_share"] for row in lines),
        "host_bound_share": _mean_of_known(row["perf/host_bound_share"] for row in lines),
        "line_step_times_s": times_s,
        "recompiles": trainer.state.recompiles,
    }


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else math.fsum(cast("list[float]", known)) / len(known)


def measure_evaluation(
    trainer: Trainer, rows: Sequence[dict[str, Any]], beats: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return facts about the evaluation before the first step: its heartbeat, loss and slowest microbatch."""
    first = next((row for row in rows if row["step"] == 0), {})
    return {
        "is_configured": trainer.task.evaluation is not None,
        "was_announced": any(beat["phase"] == EVALUATION and beat["step"] == 0 for beat in beats),
        "loss": first.get(EVAL_LOSS),
        "microbatch_s": trainer.phases.longest_s.get(EVALUATION),
    }


def describe_attention(trainer: Trainer, has_mask: bool | None) -> dict[str, Any]:
    """Return the chosen attention kernel, and the kernel that each transformer block used.

    A block that used no kernel has an empty name. `has_mask` is stored with them: whether packed
    microbatches have an attention mask; None if they are not packed.
    """
    ran = trainer.task.attention_used
    layers = model_shape(trainer.config, trainer.task.model.config.vocab_size).num_layers
    return {
        "resolved": trainer.task.backbone.attention,
        "ran": [ran.get(layer, "") for layer in range(layers)],
        "has_mask_with_packing": has_mask,
    }
