"""Adapter of a backbone for the attention probes, with the run's precision and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from neobert.families.attention import AttentionSpec
from neobert.families.backbone import Backbone
from neobert.objectives import Objective, TokenObjective
from neobert.parallel import World
from neobert.probes.attention import ProbedModel

MODEL_ARGUMENTS = ("input_ids", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
"""Arguments of an objective that its model takes."""


def probed_model(
    backbone: Backbone,
    objective: Objective,
    world: World,
    inputs: Callable[[Any, torch.device], dict[str, Any]],
    spec: AttentionSpec,
) -> ProbedModel:
    """Return the model of an objective for `attention_answers`.

    Args:
        objective: objective on the device; in evaluation mode if the model has dropout.
        inputs: converts a microbatch to arguments of the objective, see `Task.inputs`.
        spec: attention that the shape of the model declares.
    """

    def hidden(batch: Any) -> Tensor:
        # With gradients: without them, other kernels may run.
        with world.autocast():
            return hidden_states(backbone, objective, inputs(batch, world.device)).detach()

    @torch.no_grad()
    def plain(document: Tensor) -> Tensor:
        with (
            disable_tf32(),
            compute_blocks_in_fp32(backbone.blocks),
            torch.autocast(world.device.type, enabled=False),
        ):
            return backbone.plain(document)

    @torch.no_grad()
    def rounded(document: Tensor) -> Tensor:
        stream_dtype = objective.stream_dtype if isinstance(objective, TokenObjective) else None
        with world.autocast(), convert_embeddings(stream_dtype, backbone.model):
            return backbone.plain(document)

    def positions(batch: Any) -> Tensor | None:
        given: Tensor | None = inputs(batch, world.device).get("position_ids")
        with torch.compiler.set_stance("force_eager"), record_positions(backbone.model.base_model) as seen:
            hidden(batch)
        # Blocks that this project's kernels replace are called without the model around them.
        if not seen or seen[0] is None:
            return None if seen else given
        return seen[0] - backbone.first_position

    return ProbedModel(hidden=hidden, plain=plain, rounded=rounded, positions=positions, spec=spec)


def hidden_states(backbone: Backbone, objective: Objective, inputs: dict[str, Any]) -> Tensor:
    """Return the final hidden states [T, D] of a microbatch, by the kernels that train."""
    inputs = {name: inputs[name] for name in MODEL_ARGUMENTS}
    if isinstance(objective, TokenObjective):
        return objective.final_states(objective.encode(inputs))
    return backbone.hidden(inputs)


@contextmanager
def convert_embeddings(dtype: torch.dtype | None, model: PreTrainedModel) -> Iterator[None]:
    """Convert the embeddings, and so the residual stream under autocast, to `dtype` if it is not None."""

    def convert(_table: nn.Module, _arguments: Any, embedded: Tensor) -> Tensor:
        return embedded if dtype is None else embedded.to(dtype)

    handle = model.get_input_embeddings().register_forward_hook(convert)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def record_positions(model: nn.Module) -> Iterator[list[Tensor | None]]:
    """Record the position ids of each call of the model inside the `with` block; None if it got none."""
    received: list[Tensor | None] = []

    def note(_model: nn.Module, _arguments: Any, named: dict[str, Any]) -> None:
        received.append(named.get("position_ids"))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield received
    finally:
        handle.remove()


class _ModuleCall(nn.Module):
    """Callable that runs a block's forward without the hooks that gather its weights."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.function = block, block.forward

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


@contextmanager
def compute_blocks_in_fp32(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Compute blocks gathered in bf16 with fp32 copies of their weights, inside the `with` block."""

    def computed(call: _ModuleCall, *arguments: Any, **named: Any) -> Any:
        wide = {name: each.float() for name, each in call.named_parameters() if each.dtype == torch.bfloat16}
        return functional_call(call, wide, arguments, named)

    calls = [_ModuleCall(block) for block in blocks]
    for call in calls:
        call.block.forward = partial(computed, call)
    try:
        yield
    finally:
        for call in calls:
            call.block.forward = call.function


@contextmanager
def disable_tf32() -> Iterator[None]:
    """Compute matrix products of fp32 in fp32 inside the `with` block, without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
