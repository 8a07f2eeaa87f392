"""Each planted fault of the attention is found by the probe of its property; a sound one passes all."""

import pytest
import torch

from neobert.families.nsa import attention, model, reference
from neobert.families.nsa.reference import NO_BLOCK, AttentionResult
from neobert.families.table import model_shape
from neobert.probes import sparse
from neobert.probes.sparse import count_dead_gates
from tests.nsa.probed import (
    DENSE,
    GROUP,
    LATER,
    LEAKS,
    MOVED,
    OTHERS,
    OUTPUTS,
    ROTATION,
    SELECTION,
    detach_a_gate,
    missed,
    with_a_duplicate,
    with_heads_in_turns,
)
from tests.nsa.sizes import build, config_of, packed

SPEC = model_shape(config_of(), 1).attention


def missed_on_a_cpu() -> set[str]:
    return missed(SPEC, torch.device("cpu"), torch.float32)


def test_the_reference_passes_every_probe():
    assert missed_on_a_cpu() == set()


select, complete, lengths_of, attend = (
    reference.select_blocks,
    reference.complete_blocks,
    reference.segment_lengths,
    attention.attend_by_reference,
)


def forced_alone(weights, spec):
    """A selector that picks only blocks which it must."""
    blocks, own = select(weights, spec), torch.arange(weights.shape[1])[:, None] // spec.size
    return torch.where(reference.is_forced(blocks, own), blocks, NO_BLOCK)


def twice_the_first(weights, spec):
    return with_a_duplicate(select(weights, spec))


def of_other_heads(q, k, v, gates, *rest):
    return with_heads_in_turns(lambda *row: attend(*row, *rest), q, k, v, gates)


def with_swapped_gates(q, k, v, gates, *rest):
    return attend(q, k, v, gates[..., [0, 2, 1]], *rest)


def with_all_scores(q, k, v, gates, *rest):
    """Scores of the compressed branch that know the whole row."""
    found = attend(q, k, v, gates, *rest)
    return AttentionResult(found.context, found.blocks, found.lse + k.mean())


def with_a_leak_into_other_gradients(q, k, v, gates, *rest):
    """Outputs are right; every token gets a gradient of every output."""
    found = attend(q, k, v, gates, *rest)
    return found._replace(context=found.context + (k.sum() - k.sum().detach()))


def with_gradients_by_the_whole_row(q, k, v, gates, *rest):
    """Outputs are right, and no other token gets a gradient; that of an output knows the whole row."""
    found = attend(q, k, v, gates, *rest)
    share = gates.sum((1, 2))[:, None, None] * (1 + k.mean()).detach()
    return found._replace(context=found.context + (share - share.detach()))


@pytest.mark.parametrize(
    ("owner", "name", "fault", "found_by"),
    [
        (reference, "HIDDEN", -1e4, {OUTPUTS, LATER}),
        (reference, "is_forced", lambda block, own: (block == own) | (block == own - 1), {SELECTION}),
        (reference, "select_blocks", forced_alone, {SELECTION, DENSE}),
        (reference, "select_blocks", twice_the_first, {SELECTION, DENSE}),
        (
            reference,
            "complete_blocks",
            lambda at, num, size: complete(at + size - 1, num, size),
            {LATER},
        ),
        (reference, "complete_blocks", lambda at, num, size: complete(at - 1, num, size), {OUTPUTS}),
        (reference, "segment_lengths", lambda *row: [sum(lengths_of(*row))], {OTHERS, OUTPUTS}),
        (attention, "attend_by_reference", of_other_heads, {OUTPUTS, GROUP}),
        (attention, "attend_by_reference", with_swapped_gates, {OUTPUTS}),
        (attention, "attend_by_reference", with_all_scores, {LATER, OTHERS}),
        (attention, "attend_by_reference", with_a_leak_into_other_gradients, LEAKS),
        (attention, "attend_by_reference", with_gradients_by_the_whole_row, MOVED),
        (
            sparse,
            "compute_rotation",
            lambda at, *sizes: model.compute_rotation(at.bfloat16(), *sizes),
            {ROTATION},
        ),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, owner, name, fault, found_by):
    monkeypatch.setattr(owner, name, fault)
    assert found_by <= missed_on_a_cpu()


def test_a_gate_without_a_gradient_is_counted(monkeypatch):
    def dead():
        backbone = build()
        modules = [block.attn for block in backbone.blocks]
        return count_dead_gates(modules, backbone.hidden(packed()).square().sum())

    assert dead() == 0
    detach_a_gate(monkeypatch)
    assert dead() == 2 * 32  # layers, heads
