"""Construction of a run's objective, compiled or recorded as CUDA graphs if the run says so."""

from __future__ import annotations

import torch

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.table import longest_row
from neobert.kernel_table import ATTENTION
from neobert.model import NeoBERT, NeoBERTLMHead
from neobert.objectives.masked_lm import MaskedLMObjective
from neobert.objectives.objective import target_capacity
from neobert.objectives.packed_encoder import KernelObjective
from neobert.objectives.step_kernels import StepKernels


def build_objective(
    config: RunConfig, model: NeoBERTLMHead, kernels: StepKernels, device_type: str, *, num_ranks: int = 1
) -> MaskedLMObjective:
    """Build the masked-language-modeling objective with the chosen kernels, compiled if configured.

    With one rank, a packed step is compiled as one graph. With several ranks, each block is a separate graph,
    so that the gradient all-reduce overlaps the rest of the backward pass.

    Raises `ProjectError` ATT001 if trainer.torch_compile or trainer.cuda_graphs is set and packed SDPA cannot
    be compiled.
    """
    objective = _choose(config, model, kernels, device_type)
    if config.trainer.torch_compile:
        _compile(objective, config, kernels, is_alone=num_ranks == 1)
    elif config.trainer.cuda_graphs and objective.capacity is not None and num_ranks == 1:
        refuse_loop(config, kernels)
        objective.record_cuda_graphs()
    return objective


def _choose(
    config: RunConfig, model: NeoBERTLMHead, kernels: StepKernels, device_type: str
) -> MaskedLMObjective:
    trainer, rates = config.trainer, masking_rates(config.datacollator)
    capacity = _capacity(config, device_type, trainer.per_device_train_batch_size, rates.training)
    eval_capacity = _capacity(config, device_type, trainer.per_device_eval_batch_size, rates.evaluation)
    if kernels.replace_blocks and capacity is not None:
        return KernelObjective(model, kernels, capacity, eval_capacity, trainer.z_loss)
    return MaskedLMObjective(model, trainer.masked_logits_only_loss, capacity, eval_capacity, trainer.z_loss)


def _capacity(config: RunConfig, device_type: str, rows: int, probability: float) -> int | None:
    """Return the static number of decoder rows for packed rows on a GPU; None (dynamic) otherwise."""
    if device_type != "cuda" or not config.datacollator.pack_sequences:
        return None
    return target_capacity(rows * longest_row(config), probability)


def _compile(
    objective: MaskedLMObjective, config: RunConfig, kernels: StepKernels, *, is_alone: bool
) -> None:
    """Compile the objective in place: with packed rows the whole step, with padded rows only the encoder."""
    backend = config.trainer.torch_compile_backend
    refuse_loop(config, kernels)
    if not config.datacollator.pack_sequences:
        compile_encoder(objective.model.model, backend, is_alone=is_alone)
    elif is_alone:
        objective.compile_loss(backend, cuda_graphs=config.trainer.cuda_graphs)
    else:
        objective.compile_parts(backend)


def refuse_loop(config: RunConfig, kernels: StepKernels) -> None:
    """Raise `ProjectError` ATT001 if attention loops over packed documents, which cannot be compiled."""
    if config.datacollator.pack_sequences and ATTENTION[kernels.attention].program == "loop":
        raise ProjectError(
            "ATT001",
            f"packed {kernels.attention} runs once per document and cannot be compiled ({kernels.reason})",
            "set trainer.torch_compile to false, or run in bf16 on a CUDA device with attn_backend auto",
            "trainer.torch_compile",
        )


def compile_encoder(encoder: NeoBERT, backend: str, *, is_alone: bool) -> None:
    """Compile the encoder for rows of any length: as one graph with one rank, else one graph per block."""
    if is_alone:
        encoder.compile(backend=backend, fullgraph=True)
        return
    for block in encoder.transformer_encoder:
        block.forward = torch.compile(block.forward, backend=backend, fullgraph=True)
