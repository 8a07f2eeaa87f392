"""Recomputing blocks in the backward pass changes memory, and no gradient."""

import warnings

import pytest
import torch


def gradients(model, run) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**run.inputs()).logits.square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def count_block_forwards(model, run) -> list[int]:
    """How often each block's attention ran in one forward and backward."""
    counts = [0] * len(model.model.transformer_encoder)
    handles = [
        block.qkv.register_forward_hook(lambda *_, i=i: counts.__setitem__(i, counts[i] + 1))
        for i, block in enumerate(model.model.transformer_encoder)
    ]
    gradients(model, run)
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize(("every_n", "wanted"), [(1, [2, 2, 2, 2]), (2, [2, 1, 2, 1]), (3, [2, 1, 1, 2])])
def test_gradients_are_equal_and_the_stride_is_kept(make_model, pack, every_n, wanted):
    model, run = make_model(num_hidden_layers=4).train(), pack((7, 1, 12))
    plain = gradients(model, run)
    model.enable_gradient_checkpointing(every_n)
    assert count_block_forwards(model, run) == wanted
    for name, gradient in gradients(model, run).items():
        assert torch.equal(gradient, plain[name]), name


def test_evaluation_recomputes_nothing(make_model, pack):
    model = make_model()
    model.enable_gradient_checkpointing()
    assert count_block_forwards(model, pack((5, 3))) == [1, 1, 1]


def test_transformers_own_switch_works(make_model, pack):
    model, run = make_model().train(), pack((7, 1, 12))
    plain = gradients(model, run)
    with warnings.catch_warnings():  # newer releases prefer another name
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable()
    assert count_block_forwards(model, run) == [2, 2, 2]
    for name, gradient in gradients(model, run).items():
        assert torch.equal(gradient, plain[name]), name
