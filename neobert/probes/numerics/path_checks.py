"""Every probe on one path, every planted fault beside them, and where the time went."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from neobert.config.schema import RunConfig
from neobert.model.record import summarize
from neobert.objectives import StepKernels
from neobert.probes.numerics.attention_direction import direction_declared, measure_direction
from neobert.probes.numerics.determinism import measure_repeats
from neobert.probes.numerics.isolation import choose_victims, measure_isolation, measure_padding
from neobert.probes.numerics.leak_batch import Specimen, build_specimen
from neobert.probes.numerics.mutants import run_mutants
from neobert.probes.numerics.parity import Yardstick, measure_parity
from neobert.probes.numerics.paths import Path, build_path
from neobert.probes.numerics.phase_times import Stopwatch
from neobert.probes.numerics.rotary import measure_rotation

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Setting:
    """What all paths share.

    Attributes:
        yardstick: of the last path's weights; `yardstick_for` says whether it holds for another's.
    """

    config: RunConfig
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    specimen: Specimen
    yardstick: Yardstick | None = None

    def yardstick_for(self, path: Path) -> Yardstick:
        """Return the truth about the specimen under a path's weights, once for all paths that share them."""
        if self.yardstick is None or not self.yardstick.is_of(path):
            self.yardstick = Yardstick(path, self.specimen)
        return self.yardstick


@dataclass(frozen=True, slots=True)
class Way:
    """A path that is to be probed."""

    kernels: StepKernels
    is_compiled: bool
    is_resolved: bool

    @property
    def label(self) -> str:
        """The path in a few words."""
        return f"{self.kernels.name}, {self.kernels.attention}{', compiled' if self.is_compiled else ''}"

    def unmeasured(self) -> dict[str, Any]:
        """Return the report of a path of which nothing is known yet."""
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


def probe_path(setting: Setting, way: Way) -> dict[str, Any]:
    """Run every probe on one path. What stops one of them is written down; it is no result."""
    found = way.unmeasured()
    watch = Stopwatch(setting.device)
    log.info("probing %s", way.label)
    try:
        for measured in measure(setting, way, watch):
            found |= measured
    except Exception as error:
        log.exception("%s stopped", way.label)
        found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found | {"durations_s": watch.durations_s}


def build(setting: Setting, kernels: StepKernels, **how: bool) -> Path:
    """Build a path of this setting; `how` as `build_path` takes it."""
    return build_path(setting.config, kernels, setting.vocab_size, setting.device, setting.dtype, **how)


def measure(setting: Setting, way: Way, watch: Stopwatch) -> Iterator[dict[str, Any]]:
    """Run every probe of a path, then the planted faults; yield what is known so far of it."""
    specimen = setting.specimen
    with watch.phase("model"):
        path = build(setting, way.kernels, is_compiled=way.is_compiled)
    with watch.phase("first step"):  # in which kernels and graphs are compiled
        path.gradients(specimen, specimen.labels(specimen.places_outside(None)))
    yield {
        "dispatched": summarize(path.objective.attention_ran) or "",
        "declared": direction_declared(path),
    }
    with watch.phase("golden"):
        yardstick = setting.yardstick_for(path)
    found: dict[str, Any] = {}
    for name, probe in probes_of(path, yardstick).items():
        with watch.phase(name):
            found[name] = probe(path, specimen)
        yield {"probes": found}
    if not path.is_compiled:
        with watch.phase("long document"):
            long = measure_long_context(path, specimen)
        yield long
    with watch.phase("mutants"):
        mutants = run_mutants(path, specimen, yardstick)
    yield {"mutants": mutants}


def probes_of(path: Path, yardstick: Yardstick) -> dict[str, Callable[[Path, Specimen], Any]]:
    """Return the probes that a path can show something to, by the group of their results."""

    def isolation(path: Path, specimen: Specimen) -> dict[str, Any]:
        return measure_isolation(path, specimen, choose_victims(specimen))

    def direction(path: Path, specimen: Specimen) -> dict[str, int]:
        return measure_direction(path, specimen, choose_victims(specimen))

    def parity(path: Path, specimen: Specimen) -> dict[str, Any]:
        return measure_parity(path, specimen, yardstick)

    of_any: dict[str, Callable[[Path, Specimen], Any]] = {
        "isolation": isolation, "parity": parity, "repeats": measure_repeats,
    }  # fmt: skip
    if path.is_compiled:
        return of_any
    return of_any | {"padding": measure_padding, "direction": direction, "rotation": measure_rotation}


def measure_long_context(path: Path, specimen: Specimen) -> dict[str, Any]:
    """Take one step over a single document as long as the model accepts; say whether all of it is finite.

    Its microbatch has as many places as the specimen, where it fits: kernels that are compiled for one number
    of them need not be compiled anew.
    """
    config = path.model.config
    length = config.max_position_embeddings
    alone = build_specimen(path.config, config.vocab_size, (length,), path.device, specimen.input_ids.numel())
    loss, gradients = path.gradients(alone, alone.labels(alone.places[0]))
    is_finite = bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients.values())
    return {"long_length": length, "is_long_finite": is_finite}
