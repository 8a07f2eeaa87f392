"""The numerical suite: every probe and every planted fault on every path.

If every backend is requested, each path but the first has a process of its own, several at a time: most of
the time goes into compilers, and a kernel that crashes takes nothing with it but its own path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from neobert.config.schema import RunConfig
from neobert.data.batches.shape import row_length
from neobert.kernel_table import ATTENTION
from neobert.objectives import StepKernels
from neobert.plan.vocabulary import vocabulary_rows
from neobert.probes.numerics.comparison import finite
from neobert.probes.numerics.kernel_candidates import Candidates, find_candidates
from neobert.probes.numerics.leak_batch import build_leak_batch, lengths_for, shape_for
from neobert.probes.numerics.path_checks import Setting, Variant, build, probe_path
from neobert.probes.numerics.paths import probe_config

Probe = Callable[[Setting, Sequence[Variant]], list[dict[str, Any]]]


def run_suite(
    config: RunConfig, device_type: str, *, every: bool, probe: Probe | None = None
) -> dict[str, Any]:
    """Probe the path that the run resolves to, or every backend that is installed; return plain numbers.

    Args:
        probe: probes the paths; the default does so one after the other in this process.

    Raises `ProjectError` ATT001 where what the run names cannot run here.
    """
    setting, candidates = prepare(config, device_type, every=every)
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
        "paths": (probe or probe_here)(setting, variants),
        "initial_loss": measure_initial_loss(setting, candidates.found[0]),
        "unavailable": candidates.unavailable,
    }


def probe_here(setting: Setting, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Probe paths in this process."""
    return [probe_path(setting, variant) for variant in variants]


def probe_named(config: RunConfig, device_type: str, label: str) -> dict[str, Any]:
    """Probe the path with this label."""
    setting, candidates = prepare(config, device_type, every=True)
    (variant,) = (variant for variant in list_variants(setting, candidates) if variant.label == label)
    return probe_path(setting, variant)


def prepare(config: RunConfig, device_type: str, *, every: bool) -> tuple[Setting, Candidates]:
    """Return what all paths share, and the kernels that can run it, the run's own first."""
    compute_as_in_training(config, device_type)
    setting = make_setting(config, torch.device(device_type))
    return setting, find_candidates(config, device_type, setting.dtype, every=every)


def compute_as_in_training(config: RunConfig, device_type: str) -> None:
    """Set what the trainer sets for all of a process: see `neobert.training.loop.session`."""
    if device_type == "cuda":
        torch.set_float32_matmul_precision("high" if config.trainer.tf32 else "highest")
    else:
        torch.use_deterministic_algorithms(True)


def make_setting(config: RunConfig, device: torch.device) -> Setting:
    """Derive the probes' model and microbatch from the run's config."""
    lengths = lengths_for(row_length(config))
    shape = shape_for(config, lengths, row_length(config))
    small = probe_config(config, shape.rows)
    vocab_size = vocabulary_rows(config)
    dtype = torch.bfloat16 if config.trainer.mixed_precision == "bf16" else torch.float32
    return Setting(small, vocab_size, device, dtype, build_leak_batch(small, vocab_size, lengths, device))


def list_variants(setting: Setting, candidates: Candidates) -> list[Variant]:
    """Return the paths to probe, the run's own first."""
    resolved = candidates.found[0]
    return [
        Variant(kernels, is_compiled, kernels is resolved)
        for kernels, is_compiled in _variants(setting, candidates.found)
    ]


def _variants(setting: Setting, found: list[StepKernels]) -> Iterator[tuple[StepKernels, bool]]:
    """Yield every path eager, and the first of each kind of blocks compiled if it can be.

    Compiling costs ten seconds and more, and other attention in the same graph shows little new.
    """
    kinds = set()
    for kernels in found:
        yield kernels, False
        is_single = ATTENTION[kernels.attention].program == "single"
        can_compile = setting.device.type == "cuda" and is_single
        if can_compile and setting.config.datacollator.pack_sequences and kernels.name not in kinds:
            kinds.add(kernels.name)
            yield kernels, True


def measure_initial_loss(setting: Setting, kernels: StepKernels) -> float:
    """Return the mean loss of a model with the weights that training starts from."""
    path = build(setting, kernels, has_initial_weights=True)
    labels = setting.batch.labels(setting.batch.places_outside(None))
    with torch.no_grad():
        return finite((path.loss(setting.batch, labels) / (labels >= 0).sum()).item())
