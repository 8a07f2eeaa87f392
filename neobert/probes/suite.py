"""The numerical suite: every probe on every path, and every planted fault beside them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from neobert.config.schema import RunConfig
from neobert.data.shape import row_length
from neobert.model.record import summarize
from neobert.objectives import StepKernels
from neobert.plan.size import plan_vocab_size
from neobert.probes.candidates import find_candidates
from neobert.probes.direction import direction_declared, measure_direction
from neobert.probes.isolation import choose_victims, measure_isolation, measure_padding
from neobert.probes.mutants import run_mutants
from neobert.probes.numbers import finite
from neobert.probes.parity import Yardstick, measure_parity
from neobert.probes.paths import Path, build_path, probe_config
from neobert.probes.repeats import measure_repeats
from neobert.probes.rotation import measure_rotation
from neobert.probes.specimen import Specimen, build_specimen, lengths_for, shape_for

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Setting:
    """What all paths share."""

    config: RunConfig
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    specimen: Specimen


def run_suite(config: RunConfig, device_type: str, *, every: bool) -> dict[str, Any]:
    """Probe the path that the run resolves to, or every backend that is installed; return plain numbers.

    Raises `ProjectError` ATT001 where what the run names cannot run here.
    """
    compute_as_in_training(config, device_type)
    setting = make_setting(config, torch.device(device_type))
    candidates = find_candidates(config, device_type, setting.dtype, every=every)
    paths = [
        probe_path(setting, kernels, is_compiled=is_compiled, is_resolved=kernels is candidates.found[0])
        for kernels, is_compiled in _ways(setting, candidates.found)
    ]
    return {
        "device": torch.cuda.get_device_name() if device_type == "cuda" else "cpu",
        "torch": torch.__version__,
        "is_full": every,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "vocab_size": setting.vocab_size,
        "num_tokens": setting.specimen.input_ids.numel(),
        "segment_lengths": list(setting.specimen.lengths),
        "uniform_loss": math.log(setting.vocab_size),
        "initial_loss": measure_initial_loss(setting, candidates.found[0]),
        "paths": paths,
        "unavailable": candidates.unavailable,
    }


def compute_as_in_training(config: RunConfig, device_type: str) -> None:
    """Set what the trainer sets for all of a process: see `neobert.training.session`."""
    if device_type == "cuda":
        torch.set_float32_matmul_precision("high" if config.trainer.tf32 else "highest")
    else:
        torch.use_deterministic_algorithms(True)


def make_setting(config: RunConfig, device: torch.device) -> Setting:
    """Derive the probes' model and microbatch from the run's config."""
    lengths = lengths_for(row_length(config))
    shape = shape_for(config, lengths, row_length(config))
    small = probe_config(config, shape.rows)
    vocab_size = plan_vocab_size(config.model, config.tokenizer).value
    dtype = torch.bfloat16 if config.trainer.mixed_precision == "bf16" else torch.float32
    return Setting(small, vocab_size, device, dtype, build_specimen(small, vocab_size, lengths, device))


def _ways(setting: Setting, found: list[StepKernels]) -> Iterator[tuple[StepKernels, bool]]:
    """Yield every path eager, and the first of each kind of blocks compiled too, where a graph can be had.

    Compiling costs ten seconds and more, and other attention in the same graph shows little new.
    """
    kinds = set()
    for kernels in found:
        yield kernels, False
        can_compile = setting.device.type == "cuda" and kernels.attention not in ("sdpa", "flex")
        if can_compile and setting.config.datacollator.pack_sequences and kernels.name not in kinds:
            kinds.add(kernels.name)
            yield kernels, True


def probe_path(
    setting: Setting, kernels: StepKernels, *, is_compiled: bool, is_resolved: bool
) -> dict[str, Any]:
    """Run every probe on one path. What stops one of them is written down; it is no result."""
    found: dict[str, Any] = {
        "kernels": kernels.name,
        "attention": kernels.attention if setting.config.datacollator.pack_sequences else "sdpa",
        "is_compiled": is_compiled,
        "is_resolved": is_resolved,
        **UNMEASURED,
    }
    log.info("probing %s, %s%s", kernels.name, kernels.attention, ", compiled" if is_compiled else "")
    try:
        path = _build(setting, kernels, is_compiled=is_compiled)
        for measured in measure(path, setting.specimen):
            found |= measured
    except Exception as error:
        log.exception("%s, %s stopped", kernels.name, kernels.attention)
        found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def _build(setting: Setting, kernels: StepKernels, **how: bool) -> Path:
    return build_path(setting.config, kernels, setting.vocab_size, setting.device, setting.dtype, **how)


UNMEASURED: dict[str, Any] = {
    "dispatched": "",
    "declared": "bidirectional",
    "probes": {},
    "mutants": [],
    "long_length": 0,
    "is_long_finite": None,
    "error": "",
}


def measure(path: Path, specimen: Specimen) -> Iterator[dict[str, Any]]:
    """Run every probe of a path, then the planted faults; yield what is known so far of it."""
    victims = choose_victims(specimen)
    yardstick = Yardstick(path, specimen)
    found: dict[str, Any] = {
        "isolation": measure_isolation(path, specimen, victims),
        "parity": measure_parity(path, specimen, yardstick),
        "repeats": measure_repeats(path, specimen),
    }
    yield {
        "dispatched": summarize(path.objective.attention_ran) or "",
        "declared": direction_declared(path),
        "probes": found,
    }
    if not path.is_compiled:
        found["padding"] = measure_padding(path, specimen)
        found["direction"] = measure_direction(path, specimen, victims)
        found["rotation"] = measure_rotation(path, specimen)
        yield measure_long_context(path)
    yield {"mutants": run_mutants(path, specimen, yardstick)}


def measure_long_context(path: Path) -> dict[str, Any]:
    """Take one step over a single document as long as the model accepts; say whether all of it is finite."""
    config = path.model.config
    length = config.max_position_embeddings
    specimen = build_specimen(path.config, config.vocab_size, (length,), path.device)
    loss, gradients = path.gradients(specimen, specimen.labels(specimen.places[0]))
    is_finite = bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients.values())
    return {"long_length": length, "is_long_finite": is_finite}


def measure_initial_loss(setting: Setting, kernels: StepKernels) -> float:
    """Return the mean loss of a model with the weights that training starts from."""
    path = _build(setting, kernels, has_initial_weights=True)
    labels = setting.specimen.labels(setting.specimen.places_outside(None))
    with torch.no_grad():
        return finite((path.loss(setting.specimen, labels) / (labels >= 0).sum()).item())
