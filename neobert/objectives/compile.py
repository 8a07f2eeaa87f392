"""Compilation of an objective, or its recording as CUDA graphs, as configured."""

from __future__ import annotations

import torch

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.backbone import Backbone
from neobert.kernel_table import ATTENTION
from neobert.objectives.objective import Objective
from neobert.objectives.tokens import TokenObjective
from neobert.precision.libraries import enabled_conversion

MAX_GRAPHS = 32
"""Maximum number of graphs of a block's function: kinds of blocks (three with a recipe, which leaves out the
first and the last layer) times training, evaluation and probes. torch's default of 8 would raise an error."""


def compile_objective(config: RunConfig, objective: Objective, *, num_ranks: int = 1) -> None:
    """Compile an objective in place if configured: a packed step of tokens whole, else its encoder.

    With one rank the step is one graph. With several ranks, each block is a separate graph, so that the
    gradient all-reduce overlaps the rest of the backward pass. With a recipe that converts layers, each block
    is a separate graph too: torch traces its tensors in Python, a second or more per layer, and equal blocks
    share one graph.

    Raises `ProjectError` ATT001 if trainer.torch_compile or trainer.cuda_graphs is set and packed SDPA cannot
    be compiled.
    """
    trainer, is_alone = config.trainer, num_ranks == 1
    tokens = objective if isinstance(objective, TokenObjective) else None
    if trainer.torch_compile:
        refuse_sdpa_loop(config, objective.backbone)
        backend = trainer.torch_compile_backend
        if tokens is None or not config.datacollator.pack_sequences:
            compile_encoder(objective.backbone, backend, is_alone=is_alone)
        elif is_alone and enabled_conversion(config) is None:
            tokens.compile_loss(backend, cuda_graphs=trainer.cuda_graphs)
        else:
            torch._dynamo.config.recompile_limit = MAX_GRAPHS
            tokens.compile_parts(backend)
    elif trainer.cuda_graphs and tokens is not None and tokens.capacity is not None and is_alone:
        refuse_sdpa_loop(config, tokens.backbone)
        tokens.record_cuda_graphs()


def refuse_sdpa_loop(config: RunConfig, backbone: Backbone) -> None:
    """Raise `ProjectError` ATT001 if attention loops over packed documents, which cannot be compiled."""
    name, reason = backbone.attention, backbone.attention_reason
    key = "trainer.torch_compile" if config.trainer.torch_compile else "trainer.cuda_graphs"
    if config.datacollator.pack_sequences and ATTENTION[name].program == "loop":
        raise ProjectError(
            "ATT001",
            f"packed {name} runs once per document and cannot be compiled ({reason})",
            f"set {key} to false, or run in bf16 on a CUDA device with model.attn_backend auto",
            key,
        )


def compile_encoder(backbone: Backbone, backend: str, *, is_alone: bool) -> None:
    """Compile the encoder for rows of any length: as one graph with one rank, else one graph per block."""
    if is_alone:
        backbone.model.base_model.compile(backend=backend, fullgraph=True)
        return
    for block in backbone.blocks:
        block.forward = torch.compile(block.forward, backend=backend, fullgraph=True)
