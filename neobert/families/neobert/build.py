"""The heavy half of NeoBERT."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.export.weights import load_weights
from neobert.families.build import BuiltModel
from neobert.families.neobert.spec import section_of, with_positions
from neobert.families.table import longest_row
from neobert.model import NeoBERTLMHead, build_model_config
from neobert.objectives import StepKernels, build_objective, resolve_step_kernels
from neobert.parallel import World
from neobert.plan.kernels import exchange_overlaps

log = logging.getLogger(__name__)


def build_masked_lm(
    config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int, world: World
) -> BuiltModel:
    """Build the encoder with its decoder, on the kernels that were resolved."""
    kernels = resolve_step_kernels(config, world.device.type, world.compute_dtype)
    log.info("kernels: %s, attention: %s (%s)", kernels.name, kernels.attention, kernels.reason)
    model = build_model(config, tokenizer, vocab_size, kernels)
    return BuiltModel(
        model=model,
        objective=build_objective(config, model, kernels, world.device.type, num_ranks=world.size),
        attention=kernels.attention,
        load=partial(_load, model),
        overlaps_exchange=exchange_overlaps(kernels.name),
    )


def build_model(
    config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int, kernels: StepKernels
) -> NeoBERTLMHead:
    """Build the encoder with its decoder, with initial weights."""
    section = with_positions(section_of(config), longest_row(config))
    model = NeoBERTLMHead(
        build_model_config(section, vocab_size, tokenizer.pad_id, kernels.model_attention, kernels.modules)
    )
    if config.trainer.gradient_checkpointing:
        model.enable_gradient_checkpointing(config.trainer.gradient_checkpointing_every_n)
    return model


def _load(model: NeoBERTLMHead, path: Path) -> None:
    report = load_weights(model, path)
    log.info("weights: %d tensors of %s", report.num_tensors, report.path)
