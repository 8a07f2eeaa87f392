"""Replica check: a small model must have equal weights on all ranks, and the loss of a single process.

The model uses the run's `World` and objective, in fp32, so that a difference is a fault, not rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import get_total_norm

from neobert.config.schema import ModelConfig, RunConfig
from neobert.export.weights import load_weights
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTLMHead, build_model_config
from neobert.objectives import TokenObjective
from neobert.parallel import World, full_tensor

VOCABULARY, HEADS, HEAD_DIM, LAYERS = 256, 2, 16, 2
LENGTHS = (1, 7, 24, 32)
MICROBATCHES_PER_RANK = 2
MASKED_EVERY = 5
LEARNING_RATE = 0.1


def check_replicas(config: RunConfig, world: World, saved: Path) -> dict[str, Any]:
    """Build, prepare, step, save and load a small model on all ranks.

    Returns digests of its weights after each stage, and loss and gradient norm of the distributed step and of
    the same step in one process. `saved` is the file for the weights.
    """
    torch.manual_seed(config.seed)
    section = config.model if isinstance(config.model, ModelConfig) else ModelConfig()
    model = small_model(section)
    single = step_on_one_rank(deepcopy(model), world)
    digests = {"start": weights_digest(model)}
    module = world.prepare(TokenObjective(backbone_from_model(model), targets_only=True))
    digests["after preparation"] = weights_digest(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    loss, grad_norm = step_on_all_ranks(module, world)
    optimizer.step()
    digests["after a step"] = weights_digest(model)
    digests["after a resume"] = resumed_digest(model, world, saved)
    return {
        "digests": digests,
        "loss": {
            "distributed_loss": loss,
            "distributed_grad_norm": grad_norm,
            "single_loss": single[0],
            "single_grad_norm": single[1],
        },
    }


def small_model(model: ModelConfig) -> NeoBERTLMHead:
    """Build a NeoBERT with the run's settings, but few and narrow layers, and random weights."""
    small = replace(
        model,
        hidden_size=HEADS * HEAD_DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HEADS * HEAD_DIM,
        max_position_embeddings=sum(LENGTHS),
        rope=True,
    )
    return NeoBERTLMHead(build_model_config(small, VOCABULARY, 0, "sdpa"))


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of the model's weights, gathered if sharded. All ranks must call this function."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole = full_tensor(tensor.detach()).cpu().contiguous()
        digest.update(name.encode() + whole.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def resumed_digest(model: NeoBERTLMHead, world: World, saved: Path) -> str:
    """Save the weights on rank 0, overwrite them on all ranks, load the file, and return their digest."""
    state = {name: full_tensor(each.detach()).cpu().clone() for name, each in model.state_dict().items()}
    if world.is_main:
        save_file(state, saved)
    world.wait_for_all()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(world.rank)
    load_weights(model, saved)
    return weights_digest(model)


def microbatches(world: World) -> Iterator[dict[str, Any]]:
    """Yield the microbatches of the global batch, the same on all ranks: packed rows of various lengths."""
    generator = torch.Generator().manual_seed(0)
    for number in range(MICROBATCHES_PER_RANK * world.dp_size):
        lengths = LENGTHS[number % len(LENGTHS) :]
        yield _packed_microbatch(lengths, generator, world.device)


def _packed_microbatch(
    lengths: tuple[int, ...], generator: torch.Generator, device: torch.device
) -> dict[str, Any]:
    tokens = sum(lengths)
    ids = torch.randint(1, VOCABULARY, (tokens,), generator=generator)
    is_target = torch.arange(tokens) % MASKED_EVERY == 0
    bounds = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
    return {
        "num_targets": int(is_target.sum()),
        "labels": torch.where(is_target, ids, -100).to(device),
        "input_ids": torch.where(is_target, 1, ids).to(device),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).to(device),
        "attention_mask": None,
        "cu_seqlens": bounds.to(device),
        "max_seqlen": max(lengths),
    }


def step_on_all_ranks(module: nn.Module, world: World) -> tuple[float, float]:
    """Return mean loss and gradient norm of the global batch, distributed over the ranks."""
    own = list(microbatches(world))[world.dp_rank :: world.dp_size]
    (num_targets,) = world.sum_over_ranks([sum(batch["num_targets"] for batch in own)])
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for index, batch in enumerate(own):
        with world.gradient_sync(module, is_last=index == len(own) - 1):
            loss_sum = module(**batch)
            (loss_sum * world.dp_size / num_targets).backward()
        total += loss_sum.detach()
    return float(world.all_reduce_sum(total)) / num_targets, float(world.gradient_norm(module))


def step_on_one_rank(model: NeoBERTLMHead, world: World) -> tuple[float, float]:
    """Return mean loss and gradient norm of the global batch, computed by this process alone."""
    module = TokenObjective(backbone_from_model(model), targets_only=True).to(world.device)
    batches = list(microbatches(world))
    num_targets = sum(batch["num_targets"] for batch in batches)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for batch in batches:
        loss_sum = module(**batch)
        (loss_sum / num_targets).backward()
        total += loss_sum.detach()
    gradients = [each.grad for each in module.parameters() if each.grad is not None]
    return float(total) / num_targets, float(get_total_norm(gradients))
