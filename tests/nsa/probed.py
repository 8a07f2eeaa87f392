"""The probes of native sparse attention by their subjects, and those that a planted fault fails."""

from typing import Any

import pytest
import torch
from torch import Tensor

from neobert.families.attention import AttentionSpec
from neobert.families.nsa.model import NativeSparseAttention
from neobert.families.nsa.reference import NO_BLOCK, Attend, AttentionResult
from neobert.probes.sparse import sparse_answers
from validators.known_answers import LIMITS

CHANGED = ("later tokens", "other documents")
SELECTION, OUTPUTS = "selected blocks of the definition", "outputs of the definition"
LATER, OTHERS = (f"results where {each} change" for each in CHANGED)
GROUP = "results where another head of keys changes"
LEAKS = {f"gradients of {each}" for each in CHANGED}
MOVED = {f"gradients where {each} change" for each in CHANGED}
DENSE, ROTATION = "dense attention, where both cover a document", "rotation in fp32"


def missed(spec: AttentionSpec, device: torch.device, dtype: torch.dtype) -> set[str]:
    """Return the subjects of the probes that fail; every probe must have run."""
    answers = list(sparse_answers(spec, device, dtype))
    every = {SELECTION, OUTPUTS, LATER, OTHERS, *LEAKS, *MOVED, DENSE, ROTATION}
    every |= {GROUP} if spec.kv_heads > 1 else set()
    assert {answer.subject for answer in answers} == every
    return {answer.subject for answer in answers if not answer.value <= LIMITS[answer.kind].value}


def with_a_duplicate(blocks: Tensor, *_: Any) -> Tensor:
    """Return blocks of which the second is the first once more."""
    blocks = blocks.clone()
    blocks[..., 1] = torch.where(blocks[..., 1] >= 0, blocks[..., 0], NO_BLOCK)
    return blocks


def with_heads_in_turns(attend: Attend, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> AttentionResult:
    """Attend so that query heads read heads of keys in turn: 0, 1, 0, 1, and not 0, 0, 1, 1."""
    order = torch.arange(q.shape[1], device=q.device).unflatten(0, (-1, k.shape[1])).t().flatten()
    found = attend(q[:, order], k, v, gates[:, order])
    return found._replace(context=found.context[:, order.argsort()])


def detach_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a second gate that gets no gradient."""
    real = NativeSparseAttention.gates

    def detached(self: NativeSparseAttention, x: Tensor) -> Tensor:
        gates = real(self, x)
        return torch.stack([gates[..., 0], gates[..., 1].detach(), gates[..., 2]], -1)

    monkeypatch.setattr(NativeSparseAttention, "gates", detached)
