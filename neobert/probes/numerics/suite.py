"""Numerics suite: all probes and planted faults on each path (combination of kernels, compiled or eager).

With `--full`, each path except the first runs in its own process, several at a time: most of the time is
spent in compilers, and a kernel that crashes affects only its own path.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from neobert.config import replace
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.table import max_row_length
from neobert.kernel_table import (
    ATTENTION,
    ATTENTION_CHOICES,
    BLOCKS,
    AttentionKernel,
    BlockKernel,
    block_attention,
)
from neobert.objectives import StepKernels, resolve_step_kernels
from neobert.objectives.step_kernels import block_attention_error, set_torch_kernels
from neobert.plan.vocabulary import num_embedding_rows
from neobert.precision.table import run_recipe
from neobert.probes.numerics.leak_batch import batch_shape_for, build_leak_batch, lengths_for
from neobert.probes.numerics.path_checks import PathVariant, ProbeSetting, build_variant_path, probe_path
from neobert.probes.numerics.paths import finite_or_infinity, probe_config

Probe = Callable[[ProbeSetting, Sequence[PathVariant]], list[dict[str, Any]]]


def run_suite(
    config: RunConfig, device_type: str, *, every: bool, probe: Probe | None = None
) -> dict[str, Any]:
    """Probe the run's kernels or, with `every`, all kernels that can run here; return JSON values.

    Args:
        probe: function that probes the paths; None: `probe_sequentially`.

    Raises `ProjectError` ATT001 if the kernels that the config names cannot run on this machine.
    """
    setting, candidates = prepare_suite(config, device_type, every=every)
    variants = list_variants(setting, candidates)
    return {
        "device": torch.cuda.get_device_name() if device_type == "cuda" else "cpu",
        "torch": torch.__version__,
        "is_full": every,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "vocab_size": setting.vocab_size,
        "num_tokens": setting.batch.input_ids.numel(),
        "segment_lengths": list(setting.batch.lengths),
        "uniform_loss": math.log(setting.vocab_size),
        "paths": (probe or probe_sequentially)(setting, variants),
        "initial_loss": measure_initial_loss(setting, candidates.runnable[0]),
        "unavailable": candidates.unavailable,
    }


def probe_sequentially(setting: ProbeSetting, variants: Sequence[PathVariant]) -> list[dict[str, Any]]:
    """Probe the paths one after another in this process; return their reports."""
    return [probe_path(setting, variant) for variant in variants]


def probe_path_by_label(config: RunConfig, device_type: str, label: str) -> dict[str, Any]:
    """Probe the path whose `PathVariant.label` is `label`; return its report.

    Raises `ValueError` if there is no such path.
    """
    setting, candidates = prepare_suite(config, device_type, every=True)
    (variant,) = (variant for variant in list_variants(setting, candidates) if variant.label == label)
    return probe_path(setting, variant)


def prepare_suite(config: RunConfig, device_type: str, *, every: bool) -> tuple[ProbeSetting, Candidates]:
    """Return the inputs that all paths share, and the kernels to probe, with the run's own kernels first."""
    set_torch_kernels(config, device_type)
    setting = make_setting(config, torch.device(device_type))
    return setting, find_candidates(config, device_type, setting.dtype, every=every)


def make_setting(config: RunConfig, device: torch.device) -> ProbeSetting:
    """Return the probes' config, vocabulary size, dtype and microbatch, derived from the run's config."""
    lengths = lengths_for(max_row_length(config))
    shape = batch_shape_for(config, lengths, max_row_length(config))
    small = probe_config(config, shape.rows)
    vocab_size = num_embedding_rows(config)
    dtype = getattr(torch, run_recipe(config).dtype)
    return ProbeSetting(
        small, vocab_size, device, dtype, build_leak_batch(small, vocab_size, lengths, device)
    )


def list_variants(setting: ProbeSetting, candidates: Candidates) -> list[PathVariant]:
    """Return the paths to probe, with the path of the run's own kernels first."""
    resolved = candidates.runnable[0]
    return [
        PathVariant(kernels, is_compiled, kernels is resolved)
        for kernels, is_compiled in _kernels_and_compilation(setting, candidates)
    ]


def _kernels_and_compilation(
    setting: ProbeSetting, candidates: Candidates
) -> Iterator[tuple[StepKernels, bool]]:
    """Yield all kernels eager, and the first kernels with each block kernel also compiled, if possible.

    Compiling takes ten seconds or more: a run that does not compile has no compiled path to probe, and other
    attention kernels in the same graph add little coverage.
    """
    kinds = set()
    for kernels in candidates.runnable:
        yield kernels, False
        is_single = ATTENTION[kernels.attention].program == "single"
        can_compile = candidates.compiles and setting.device.type == "cuda" and is_single
        if can_compile and setting.config.datacollator.pack_sequences and kernels.name not in kinds:
            kinds.add(kernels.name)
            yield kernels, True


def measure_initial_loss(setting: ProbeSetting, kernels: StepKernels) -> float:
    """Return the mean loss per labelled token of a model with the initial weights of training."""
    path = build_variant_path(setting, kernels, has_initial_weights=True)
    labels = setting.batch.labels(setting.batch.positions_outside(None))
    with torch.no_grad():
        return finite_or_infinity((path.loss(setting.batch, labels) / (labels >= 0).sum()).item())


@dataclass(slots=True)
class Candidates:
    """Kernels to probe.

    Attributes:
        runnable: kernels that can run, with the run's own kernels first.
        compiles: whether to probe compiled paths too.
        unavailable: error message for each other combination, by "kernel, attention".
    """

    runnable: list[StepKernels]
    compiles: bool
    unavailable: dict[str, str] = field(default_factory=dict)

    def add(self, kernels: StepKernels) -> None:
        """Append kernels to `runnable` unless the same combination is in the list."""
        if all((kernels.name, kernels.attention) != (old.name, old.attention) for old in self.runnable):
            self.runnable.append(kernels)


def find_candidates(config: RunConfig, device_type: str, dtype: torch.dtype, *, every: bool) -> Candidates:
    """Resolve the run's kernels and, with `every` and packed sequences, all others that run on this machine.

    Raises `ProjectError` ATT001 if the kernels that the config names cannot run on this machine.
    """
    candidates = Candidates(
        [resolve_step_kernels(config, device_type, dtype)], compiles=every or config.trainer.torch_compile
    )
    if not every or not config.datacollator.pack_sequences:
        return candidates
    for name, attention in selectable_kernels():
        variant = replace(replace(config, BlockKernel.KEY, name), AttentionKernel.KEY, attention)
        try:
            kernels = resolve_step_kernels(variant, device_type, dtype)
        except ProjectError as error:
            candidates.unavailable[f"{name}, {attention}"] = error.message
            continue
        candidates.add(kernels)
        if kernels.replaces_blocks:
            reason = "every backend was requested"
            for kernel in block_attention(row_length=0):
                if block_attention_error(kernel) is None:
                    candidates.add(dataclasses.replace(kernels, attention=kernel.name, reason=reason))
    return candidates


def selectable_kernels() -> list[tuple[str, str]]:
    """Return the pairs (`model.kernel_backend`, `model.attn_backend`) to try.

    They are torch blocks with each attention kernel, and each other block kernel with attention "auto".
    """
    attentions = [name for name in ATTENTION_CHOICES if name != "auto"]
    blocks = [name for name in reversed(BLOCKS) if name != "torch"]
    return [("torch", name) for name in attentions] + [(name, "auto") for name in blocks]


CORES_PER_PATH = 2
BYTES_PER_PATH = 8 * 2**30
"""GPU memory reserved per path: more than a path of hidden size 768 needs with its CUDA context."""


@dataclass(frozen=True, slots=True)
class ParallelPaths:
    """Probe the first path in this process, and at the same time each other path in its own child process."""

    resolved_file: Path

    def __call__(self, setting: ProbeSetting, variants: Sequence[PathVariant]) -> list[dict[str, Any]]:
        """Probe all paths; return their reports in the order of `variants`."""
        first, *others = variants
        num_workers = min(len(others), max_parallel_paths(setting.device))
        if num_workers < 2:
            return [probe_path(setting, variant) for variant in variants]
        with ThreadPoolExecutor(num_workers) as pool:
            # Paths that compile a graph take longest, so they begin first.
            ordered = sorted(others, key=lambda variant: not variant.is_compiled)
            pending = {variant: pool.submit(self.probe, setting, variant) for variant in ordered}
            return [probe_path(setting, first), *(pending[variant].result() for variant in others)]

    def probe(self, setting: ProbeSetting, variant: PathVariant) -> dict[str, Any]:
        """Probe one path in a child process; return its report, with `error` set if the process fails.

        Phase `process` of the durations is the wall time of the child process.
        """
        started = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "neobert.probes", str(self.resolved_file),
             "--device", setting.device.type, "--path", variant.label],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )  # fmt: skip
        lines = ended.stdout.decode(errors="replace").strip().splitlines()
        if ended.returncode or not lines:
            stopped = {"error": f"probe process exited with code {ended.returncode} and printed no result"}
            return variant.empty_report() | stopped
        found: dict[str, Any] = json.loads(lines[-1])
        found["durations_s"]["process"] = round(time.perf_counter() - started, 3)
        return found


def max_parallel_paths(device: torch.device) -> int:
    """Return the number of paths to probe at the same time, limited by CPU cores and free GPU memory."""
    cores = len(os.sched_getaffinity(0)) // CORES_PER_PATH
    if device.type != "cuda":
        return cores
    free, _ = torch.cuda.mem_get_info(device)
    return min(cores, free // BYTES_PER_PATH)
