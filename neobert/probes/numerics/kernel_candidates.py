"""Kernels to probe: the ones that the run resolves to, or all that can run here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch

from neobert.config import replace
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.kernel_table import ATTENTION_CHOICES, BLOCKS, AttentionKernel, BlockKernel, block_attention
from neobert.objectives import StepKernels, resolve_step_kernels
from neobert.objectives.step_kernels import block_attention_error


@dataclass(slots=True)
class Candidates:
    """Kernels that can run, the run's own choice first, and why the others cannot."""

    found: list[StepKernels] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)

    def add(self, kernels: StepKernels) -> None:
        """Add a choice that is not in the list yet."""
        if all((kernels.name, kernels.attention) != (old.name, old.attention) for old in self.found):
            self.found.append(kernels)


def find_candidates(config: RunConfig, device_type: str, dtype: torch.dtype, *, every: bool) -> Candidates:
    """Resolve the run's kernels and, if every backend is requested, all others that run here.

    Raises `ProjectError` ATT001 where what the run names cannot run.
    """
    candidates = Candidates([resolve_step_kernels(config, device_type, dtype)])
    if not every or not config.datacollator.pack_sequences:
        return candidates
    for name, attention in nameable():
        asked = replace(replace(config, BlockKernel.KEY, name), AttentionKernel.KEY, attention)
        try:
            kernels = resolve_step_kernels(asked, device_type, dtype)
        except ProjectError as error:
            candidates.unavailable[f"{name}, {attention}"] = error.message
            continue
        candidates.add(kernels)
        if kernels.replace_blocks:
            for kernel in block_attention(row_length=0):
                if block_attention_error(kernel) is None:
                    candidates.add(_with_attention(kernels, kernel.name))
    return candidates


def nameable() -> list[tuple[str, str]]:
    """Return every pair of kernels and attention that a config can name."""
    attentions = [name for name in ATTENTION_CHOICES if name != "auto"]
    blocks = [name for name in reversed(BLOCKS) if name != "torch"]
    return [("torch", name) for name in attentions] + [(name, "auto") for name in blocks]


def _with_attention(kernels: StepKernels, attention: str) -> StepKernels:
    return dataclasses.replace(kernels, attention=attention, reason="every backend was requested")
