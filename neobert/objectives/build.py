"""From the run's configuration to what it minimises, compiled where it asks for that."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.model import NeoBERTLMHead
from neobert.objectives.capacity import target_capacity
from neobert.objectives.masked_lm import MaskedLMObjective
from neobert.objectives.packed_encoder import KernelObjective
from neobert.objectives.step_kernels import StepKernels


def build_objective(
    config: RunConfig, model: NeoBERTLMHead, kernels: StepKernels, device_type: str
) -> MaskedLMObjective:
    """Build the masked-language-model loss on the kernels that were resolved.

    Raises `ProjectError` ATT001 where torch.compile is asked for and packed SDPA would stop it.
    """
    objective = _choose(config, model, kernels, _capacity(config, device_type))
    if config.trainer.torch_compile:
        _compile(objective, config, kernels)
    return objective


def _choose(
    config: RunConfig, model: NeoBERTLMHead, kernels: StepKernels, capacity: int | None
) -> MaskedLMObjective:
    if kernels.replace_blocks and capacity is not None:
        return KernelObjective(model, kernels, capacity)
    return MaskedLMObjective(model, config.trainer.masked_logits_only_loss, capacity)


def _capacity(config: RunConfig, device_type: str) -> int | None:
    """Return the rows of the decoder on a GPU's packed path; a CPU gains nothing from shapes that stay."""
    if device_type != "cuda" or not config.datacollator.pack_sequences:
        return None
    row_length = config.datacollator.max_length or config.dataset.max_seq_length
    num_tokens = config.trainer.per_device_train_batch_size * row_length
    return target_capacity(num_tokens, config.datacollator.mlm_probability)


def _compile(objective: MaskedLMObjective, config: RunConfig, kernels: StepKernels) -> None:
    """Compile packed steps whole, for they have one shape; with padded rows only the encoder."""
    backend = config.trainer.torch_compile_backend
    if not config.datacollator.pack_sequences:
        objective.model.model.compile(backend=backend, fullgraph=True)
        return
    if kernels.attention == "sdpa":
        raise ProjectError(
            "ATT001",
            f"packed sdpa is a loop over documents, and no graph to compile ({kernels.reason})",
            "set trainer.torch_compile to false, or run in bf16 on a CUDA device with attn_backend auto",
            "trainer.torch_compile",
        )
    objective.compile_loss(backend)
