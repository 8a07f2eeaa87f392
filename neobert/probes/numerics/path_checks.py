"""Report of one path: results of all its probes and planted faults, with the duration of each phase."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from neobert.config.schema import RunConfig
from neobert.kernels.parallel_compilation import compile_without_running
from neobert.model.attention import summarize_kernels
from neobert.objectives import StepKernels
from neobert.probes.numerics.isolation import (
    choose_victims,
    declared_direction,
    measure_direction,
    measure_isolation,
    measure_padding,
    measure_repeats,
)
from neobert.probes.numerics.leak_batch import LeakBatch, build_leak_batch
from neobert.probes.numerics.mutants import run_mutants
from neobert.probes.numerics.parity import ReferenceErrors, measure_parity
from neobert.probes.numerics.paths import Path, build_path
from neobert.probes.numerics.rotary import measure_rotation


@dataclass(slots=True)
class Stopwatch:
    """Durations of the phases of a probe in seconds, including a phase that raised an error."""

    device: torch.device
    durations_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the `with` block as a phase of this name; synchronize with the device at its end."""
        started = time.perf_counter()
        try:
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        finally:
            self.durations_s[name] = round(time.perf_counter() - started, 3)


log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ProbeSetting:
    """Inputs that all paths share.

    Attributes:
        reference_errors: cached for the weights of the last path; `reference_for` recomputes them for other
            weights.
    """

    config: RunConfig
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    batch: LeakBatch
    reference_errors: ReferenceErrors | None = None

    def reference_for(self, path: Path) -> ReferenceErrors:
        """Return the reference errors for a path's weights, computed once for paths with the same weights."""
        if self.reference_errors is None or not self.reference_errors.has_same_weights(path):
            self.reference_errors = ReferenceErrors(path, self.batch)
        return self.reference_errors


@dataclass(frozen=True, slots=True)
class PathVariant:
    """Path to probe: a combination of kernels, compiled or eager.

    Attributes:
        is_resolved: the run itself would use these kernels.
    """

    kernels: StepKernels
    is_compiled: bool
    is_resolved: bool

    @property
    def label(self) -> str:
        """Name of the path in reports."""
        return f"{self.kernels.name}, {self.kernels.attention}{', compiled' if self.is_compiled else ''}"

    def empty_report(self) -> dict[str, Any]:
        """Return the report of this path before any measurement, with all fields that reports have."""
        return {
            "kernels": self.kernels.name,
            "attention": self.kernels.attention,
            "is_compiled": self.is_compiled,
            "is_resolved": self.is_resolved,
            "dispatched": "",
            "declared": "bidirectional",
            "probes": {},
            "mutants": [],
            "long_length": 0,
            "is_long_finite": None,
            "error": "",
            "durations_s": {},
        }


def probe_path(setting: ProbeSetting, variant: PathVariant) -> dict[str, Any]:
    """Run all probes and planted faults on one path; return its report, with any exception in `error`."""
    found = variant.empty_report()
    watch = Stopwatch(setting.device)
    log.info("probing %s", variant.label)
    try:
        for measured in measure_variant(setting, variant, watch):
            found |= measured
    except Exception as error:
        log.exception("%s stopped", variant.label)
        found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found | {"durations_s": watch.durations_s}


def build_variant_path(setting: ProbeSetting, kernels: StepKernels, **how: bool) -> Path:
    """Build the path that uses these kernels; `how` is passed to `build_path`."""
    return build_path(setting.config, kernels, setting.vocab_size, setting.device, setting.dtype, **how)


def measure_variant(
    setting: ProbeSetting, variant: PathVariant, watch: Stopwatch
) -> Iterator[dict[str, Any]]:
    """Run all probes of a path, then the planted faults; yield each part of the report when measured."""
    batch = setting.batch
    with watch.phase("model"):
        path = build_variant_path(setting, variant.kernels, is_compiled=variant.is_compiled)
    labels = batch.labels(batch.positions_outside(None))
    if path.kernels.replaces_blocks and not path.is_compiled:
        with watch.phase("kernels"), compile_without_running():
            path.gradients(batch, labels)
    with watch.phase("first step"):  # in which graphs are compiled
        path.gradients(batch, labels)
    yield {
        "dispatched": summarize_kernels(path.objective.attention_used) or "",
        "declared": declared_direction(path),
    }
    with watch.phase("reference"):
        reference_errors = setting.reference_for(path)
    found: dict[str, Any] = {}
    for name, probe in probes_for_path(path, reference_errors).items():
        with watch.phase(name):
            found[name] = probe(path, batch)
        yield {"probes": found}
    if not path.is_compiled:
        with watch.phase("long document"):
            long = measure_long_context(path, batch)
        yield long
    with watch.phase("mutants"):
        mutants = run_mutants(path, batch, reference_errors)
    yield {"mutants": mutants}


def probes_for_path(
    path: Path, reference_errors: ReferenceErrors
) -> dict[str, Callable[[Path, LeakBatch], Any]]:
    """Return the probes that apply to a path, by their names in the report; fewer for a compiled path."""

    def isolation(path: Path, batch: LeakBatch) -> dict[str, Any]:
        return measure_isolation(path, batch, choose_victims(batch))

    def direction(path: Path, batch: LeakBatch) -> dict[str, int]:
        return measure_direction(path, batch, choose_victims(batch))

    def parity(path: Path, batch: LeakBatch) -> dict[str, Any]:
        return measure_parity(path, batch, reference_errors)

    of_any: dict[str, Callable[[Path, LeakBatch], Any]] = {
        "isolation": isolation, "parity": parity, "repeats": measure_repeats,
    }  # fmt: skip
    if path.is_compiled:
        return of_any
    return of_any | {"padding": measure_padding, "direction": direction, "rotation": measure_rotation}


def measure_long_context(path: Path, batch: LeakBatch) -> dict[str, Any]:
    """Check that loss and gradients are finite for one document of `max_position_embeddings` tokens.

    Returns that length and the result.
    The microbatch is padded to the tokens of `batch` if the document is shorter, to reuse compiled kernels.
    """
    config = path.model.config
    length = config.max_position_embeddings
    alone = build_leak_batch(path.config, config.vocab_size, (length,), path.device, batch.input_ids.numel())
    loss, gradients = path.gradients(alone, alone.labels(alone.places[0]))
    is_finite = bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients.values())
    return {"long_length": length, "is_long_finite": is_finite}
