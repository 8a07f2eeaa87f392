"""The probes of native sparse attention by their subjects, and those that a planted fault fails."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neobert.families.attention import AttentionSpec
from neobert.families.nsa.model import NativeSparseAttention
from neobert.probes.sparse import sparse_answers
from validators.known_answers import LIMITS

SELECTION, OUTPUTS = "selected blocks of the definition", "outputs of the definition"
LATER, OTHERS, GROUP = "later tokens", "other documents", "heads of another group"
LEAKS = {f"gradients of {each}" for each in (LATER, OTHERS)}
MOVED = {f"gradients where {each} change" for each in (LATER, OTHERS)}
DENSE, ROTATION = "dense attention, where both cover a document", "rotation in fp32"


def missed(spec: AttentionSpec, device: torch.device, dtype: torch.dtype) -> set[str]:
    """Return the subjects of the probes that fail; every probe must have run."""
    answers = list(sparse_answers(spec, device, dtype))
    every = {SELECTION, OUTPUTS, LATER, OTHERS, *LEAKS, *MOVED, DENSE, ROTATION}
    every |= {GROUP} if spec.kv_heads > 1 else set()
    assert {answer.subject for answer in answers} == every
    return {answer.subject for answer in answers if not answer.value <= LIMITS[answer.kind].value}


def detach_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a second gate that gets no gradient."""
    real = NativeSparseAttention.gates

    def detached(self: NativeSparseAttention, x: Tensor) -> Tensor:
        gates = real(self, x)
        return torch.stack([gates[..., 0], gates[..., 1].detach(), gates[..., 2]], -1)

    monkeypatch.setattr(NativeSparseAttention, "gates", detached)
