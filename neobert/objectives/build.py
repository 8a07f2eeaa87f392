"""Construction of a run's objective, compiled or recorded as CUDA graphs if the run says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.backbone import Backbone
from neobert.families.table import longest_row
from neobert.kernel_table import ATTENTION
from neobert.objectives.labelled import LabelledObjective
from neobert.objectives.objective import target_capacity
from neobert.objectives.tokens import TokenObjective


def build_objective(
    config: RunConfig, backbone: Backbone, device_type: str, *, num_ranks: int = 1
) -> TokenObjective:
    """Build the cross-entropy of masked tokens with the model's kernels, compiled if configured.

    With one rank, a packed step is compiled as one graph. With several ranks, each block is a separate graph,
    so that the gradient all-reduce overlaps the rest of the backward pass.

    Raises `ProjectError` ATT001 if trainer.torch_compile or trainer.cuda_graphs is set and packed SDPA cannot
    be compiled.
    """
    objective = _choose(config, backbone, device_type)
    if config.trainer.torch_compile:
        _compile(objective, config, is_alone=num_ranks == 1)
    elif config.trainer.cuda_graphs and objective.capacity is not None and num_ranks == 1:
        refuse_loop(config, backbone)
        objective.record_cuda_graphs()
    return objective


def build_labelled_objective(
    config: RunConfig, backbone: Backbone, *, num_ranks: int = 1
) -> LabelledObjective:
    """Build the loss of labelled texts or tokens, with a compiled encoder if configured. Errors as above."""
    if config.trainer.torch_compile:
        refuse_loop(config, backbone)
        compile_encoder(backbone, config.trainer.torch_compile_backend, is_alone=num_ranks == 1)
    return LabelledObjective(backbone)


def _choose(config: RunConfig, backbone: Backbone, device_type: str) -> TokenObjective:
    trainer, rates = config.trainer, masking_rates(config.datacollator)
    capacity = _capacity(config, device_type, trainer.per_device_train_batch_size, rates.training)
    eval_capacity = _capacity(config, device_type, trainer.per_device_eval_batch_size, rates.evaluation)
    build: Callable[..., TokenObjective] = partial(
        TokenObjective, targets_only=trainer.masked_logits_only_loss
    )
    if backbone.token_objective is not None and capacity is not None:
        build = backbone.token_objective
    return build(backbone, capacity=capacity, eval_capacity=eval_capacity, z_loss=trainer.z_loss)


def _capacity(config: RunConfig, device_type: str, rows: int, probability: float) -> int | None:
    """Return the static number of decoder rows for packed rows on a GPU; None (dynamic) otherwise."""
    if device_type != "cuda" or not config.datacollator.pack_sequences:
        return None
    return target_capacity(rows * longest_row(config), probability)


def _compile(objective: TokenObjective, config: RunConfig, *, is_alone: bool) -> None:
    """Compile the objective in place: with packed rows the whole step, with padded rows only the encoder."""
    backend = config.trainer.torch_compile_backend
    refuse_loop(config, objective.backbone)
    if not config.datacollator.pack_sequences:
        compile_encoder(objective.backbone, backend, is_alone=is_alone)
    elif is_alone:
        objective.compile_loss(backend, cuda_graphs=config.trainer.cuda_graphs)
    else:
        objective.compile_parts(backend)


def refuse_loop(config: RunConfig, backbone: Backbone) -> None:
    """Raise `ProjectError` ATT001 if attention loops over packed documents, which cannot be compiled."""
    name, reason = backbone.attention, backbone.attention_reason
    if config.datacollator.pack_sequences and ATTENTION[name].program == "loop":
        raise ProjectError(
            "ATT001",
            f"packed {name} runs once per document and cannot be compiled ({reason})",
            "set trainer.torch_compile to false, or run in bf16 on a CUDA device with attn_backend auto",
            "trainer.torch_compile",
        )


def compile_encoder(backbone: Backbone, backend: str, *, is_alone: bool) -> None:
    """Compile the encoder for rows of any length: as one graph with one rank, else one graph per block."""
    if is_alone:
        backbone.model.base_model.compile(backend=backend, fullgraph=True)
        return
    for block in backbone.blocks:
        block.forward = torch.compile(block.forward, backend=backend, fullgraph=True)
