"""Data layer of pretraining: documents, split into segments, with masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.masking import MaskingRule
from neobert.data.batches.shape import segment_length
from neobert.data.batches.targets import TargetRule
from neobert.data.examples import Examples
from neobert.data.sources.rows import text_rows
from neobert.data.tokenize.encoding import Counts, SegmentEncoder, segment_encoder
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.plugins.kinds import MASKING
from neobert.plugins.loading import load_plugins_of_kind
from neobert.plugins.masking import PluggedMasking


@dataclass(frozen=True)
class Documents:
    """Data layer of pretraining: rows are documents, and the targets are masked tokens.

    Special tokens spelled out in a document, such as "[SEP]", become special tokens, since corpora mark
    boundaries this way. They are counted and never masked. Text about tokenizers has to escape them.
    """

    config: RunConfig

    def encoder(self, tokenizer: TokenizerBundle) -> SegmentEncoder:
        """Build the encoder of documents, framed as `framing` returns."""
        dataset, length = self.config.dataset, segment_length(self.config)
        framing = self.framing(tokenizer)
        return segment_encoder(tokenizer, length, dataset.min_length, dataset.long_documents, framing=framing)

    def framing(self, tokenizer: TokenizerBundle) -> Framing:
        """Return the framing of a document. A task with another framing records it in `identity`."""
        return tokenizer.framing

    def target_rule(self, tokenizer: TokenizerBundle) -> TargetRule:
        """Build the config's or the plug-in's masking rule."""
        collator = self.config.datacollator
        for plugin in load_plugins_of_kind(self.config.plugins, MASKING):
            return PluggedMasking(plugin, tokenizer, collator)
        return MaskingRule(
            collator.mlm_probability,
            collator.mask_all,
            tokenizer.mask_id,
            tokenizer.random_ids,
            tokenizer.is_maskable,
            collator.mlm_probability_eval,
        )

    def synthetic_columns(
        self,
        lengths: NDArray[np.int64],  # noqa: ARG002
        generator: np.random.Generator,  # noqa: ARG002
    ) -> Mapping[str, NDArray[Any]]:
        """Return no side columns: masking creates the targets."""
        return {}

    def check(self, label: str, counts: Counts) -> None:
        """Raise DAT004 for data without maskable tokens."""
        check_maskable(label, counts)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the row format alone, so that fingerprints of earlier text stay valid."""
        return text_rows(self.config.dataset).identity()


def check_maskable(label: str, counts: Counts) -> None:
    """Raise DAT004 if no token can be masked."""
    if counts.segments and counts.maskable == 0:
        raise ProjectError(
            "DAT004",
            f"none of {counts.tokens - counts.framing:,} tokens can be masked: "
            f"{counts.special:,} are special tokens, {counts.unknown:,} unknown to the tokenizer",
            "set dataset.text_column to the column of the text, or use a tokenizer that was trained on "
            "such text",
            label,
        )


def build_examples(config: RunConfig) -> Examples:
    """Return the data layer of a masked-LM pretraining run."""
    return Documents(config)
