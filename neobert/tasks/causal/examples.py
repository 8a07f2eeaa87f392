"""Data layer of causal pretraining: documents with an end-of-text token; targets are the next tokens."""

from __future__ import annotations

from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.batches.targets import TargetRule
from neobert.data.tokenize.encoding import Counts
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.next_tokens import NextTokens, check_targets, framing_with_end
from neobert.tasks.pretraining.examples import Documents


class WholeDocuments(Documents):
    """Data layer of causal pretraining: rows are documents, and every token but the first is a target."""

    def framing(self, tokenizer: TokenizerBundle) -> Framing:
        """Return the framing of a document: the tokenizer's start, and an end-of-text token."""
        return framing_with_end(tokenizer)

    def target_rule(self, _tokenizer: TokenizerBundle) -> TargetRule:
        """Build the rule that labels each token with the next one."""
        return NextTokens()

    def check(self, label: str, counts: Counts) -> None:
        """Raise DAT004 for data without targets."""
        check_targets(label, counts)

    def identity(self) -> dict[str, Any]:
        """Return the identity shared by all tasks that end each document with an end-of-text token."""
        return super().identity() | {"framing": "with an end that the tokenizer names"}


def build_examples(config: RunConfig) -> WholeDocuments:
    """Return the data layer of a causal pretraining run."""
    return WholeDocuments(config)
