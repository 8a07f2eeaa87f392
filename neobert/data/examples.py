"""Interface of a task's data layer: rows to tokens, side columns and targets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.targets import TargetRule
from neobert.data.tokenize.encoding import Counts, Encoder
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.specs import spec_of


class Examples(Protocol):
    """Interface of a task's data layer."""

    def encoder(self, tokenizer: TokenizerBundle) -> Encoder:
        """Build the encoder. It is sent to tokenizer workers, so it must be picklable."""

    def target_rule(self, tokenizer: TokenizerBundle) -> TargetRule:
        """Build the rule that labels microbatches."""

    def synthetic_columns(
        self, lengths: NDArray[np.int64], generator: np.random.Generator
    ) -> Mapping[str, NDArray[Any]]:
        """Generate side columns for synthetic segments of `lengths` [N] tokens, for benchmarks."""

    def check(self, label: str, counts: Counts) -> None:
        """Raise `ProjectError` if a split is unusable for training; `label` is its name in messages."""

    def identity(self) -> dict[str, Any]:
        """Return the task's settings that affect the prepared data, JSON-serializable."""


def load_examples(config: RunConfig) -> Examples:
    """Import and build the data layer of the config's task."""
    examples: Examples = import_module(f"{spec_of(config).keys.package}.examples").build_examples(config)
    return examples
