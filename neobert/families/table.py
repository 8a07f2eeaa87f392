"""The table of model families: the one place that names them all. Light: no torch."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import RunConfig
from neobert.families.neobert import spec as neobert
from neobert.families.shape import ModelShape


def shape_of(config: RunConfig, vocab_size: int) -> ModelShape:
    """Return the shape of the run's model, with `vocab_size` rows in its embedding."""
    return neobert.read_shape(config.model, vocab_size, longest_row(config))


def longest_row(config: RunConfig) -> int:
    """Return the tokens of the longest row that the run makes."""
    return config.datacollator.max_length or config.dataset.max_seq_length


def requested_rows(config: RunConfig) -> int | None:
    """Return the rows of the embedding that the run file sets; None: they follow the tokenizer."""
    return config.model.vocab_size


def requested_kernels(config: RunConfig) -> tuple[str, str]:
    """Return the kernels of blocks and of attention that the run file names, or `auto`."""
    return config.model.kernel_backend, config.model.attn_backend


def with_kernels(config: RunConfig, blocks: str) -> RunConfig:
    """Return the config with other kernels named for the blocks."""
    return replace(config, model=replace(config.model, kernel_backend=blocks))


def initial_weights(config: RunConfig) -> str | None:
    """Return the checkpoint whose weights a fresh run starts from; None: random weights."""
    return config.model.pretrained_checkpoint
