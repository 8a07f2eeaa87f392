"""Data layer of conversations: rendered, tokenized once, with a mark for each supervised token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.batches.targets import TargetRule
from neobert.data.tokenize.encoding import SUPERVISED, Counts, segment_encoder
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.next_tokens import NextTokens
from neobert.tasks.sft.conversation import NOTHING_SUPERVISED
from neobert.tasks.sft.encoder import ConversationEncoder, control_pattern
from neobert.tasks.sft.rows import row_format
from neobert.tasks.sft.section import SFT, TYPICAL_SHARE
from neobert.tasks.sft.template import CODE, PLACE, ChatTemplate

ONLY = {
    Fault.NO_TURN: "set dataset.path to conversations with messages of the assistant",
    Fault.FAILED: "correct the conversations that the template rejects, or set tokenizer.chat_template to "
    "another template",
    Fault.CUT: "set dataset.max_seq_length to the length of the conversations, or dataset.long_documents to "
    "truncate",
    Fault.CONTROL: "set sft.control_tokens to neutralize, or correct these messages",
}
"""Hints for conversations that have no other fault."""


@dataclass(frozen=True)
class Conversations:
    """Data layer of conversations: the targets are the tokens that the assistant wrote."""

    config: RunConfig

    def encoder(self, tokenizer: TokenizerBundle) -> ConversationEncoder:
        """Build the encoder. Raises TOK001 for a tokenizer without a chat template."""
        dataset, section = self.config.dataset, SFT.read_section(self.config)
        template = read_chat_template(tokenizer, self.config)
        length = segment_length(self.config)
        texts = segment_encoder(tokenizer, length, dataset.min_length, dataset.long_documents, Framing())
        return ConversationEncoder.build(
            texts,
            template,
            control_pattern(tokenizer.tokenizer, template.template),
            section.system_prompt,
            neutralizes=section.control_tokens == "neutralize",
        )

    def target_rule(self, tokenizer: TokenizerBundle) -> TargetRule:  # noqa: ARG002  (the marks are stored)
        """Build the rule that labels each token with the next one, if that is supervised."""
        return NextTokens(SUPERVISED)

    def synthetic_columns(
        self, lengths: NDArray[np.int64], generator: np.random.Generator
    ) -> Mapping[str, NDArray[Any]]:
        """Return marks of half of the tokens, as a typical share."""
        marks = generator.random(int(lengths.sum())) < TYPICAL_SHARE
        return {SUPERVISED.name: marks.astype(np.uint8)}

    def check(self, label: str, counts: Counts) -> None:
        """Raise SFT001 if no conversation has a supervised token, with the reason of the first fault."""
        if counts.documents and not counts.conversations.get("supervised"):
            faults = sorted(counts.faults.values(), key=lambda each: each.first)
            reason = f": {faults[0].detail} (conversation {faults[0].first:,})" if faults else ""
            kinds = {Fault(kind) for kind in counts.faults}
            hint = ONLY.get(next(iter(kinds))) if len(kinds) == 1 else None
            hint = hint or "set tokenizer.chat_template to a template that renders the assistant's messages"
            message = f"no token of {counted(counts.documents, 'conversation')} is supervised{reason}"
            raise ProjectError(NOTHING_SUPERVISED, message, hint, label)

    def identity(self) -> dict[str, Any]:
        """Return the settings of rows and supervised text that affect the prepared data."""
        section = SFT.read_section(self.config)
        settings = asdict(section)
        # earlier prepared data has these turns as supervised, or refused
        left_out = "weight 0, train 0, of a prompt, without content, without a prompt"
        return row_format(self.config).identity() | {"sft": settings, "left_out": left_out}


def read_chat_template(tokenizer: TokenizerBundle, config: RunConfig) -> ChatTemplate:
    """Return the tokenizer's chat template with the run's settings. Raises TOK001 if there is none."""
    section, fast = SFT.read_section(config), tokenizer.tokenizer
    if not fast.chat_template:
        message = "the tokenizer has no chat template to write conversations as text"
        hint = (
            "set tokenizer.chat_template to a template file, such as the chat_template.jinja of a chat model"
        )
        raise ProjectError(CODE, message, hint, PLACE)
    special = [token.content for token in fast.added_tokens_decoder.values() if token.special]
    return ChatTemplate(
        fast.get_chat_template(),
        tuple(
            (name, str(token)) for name, token in fast.special_tokens_map.items() if isinstance(token, str)
        ),
        tuple(sorted(special)),
        section.template_date,
        section.supervise,
        section.turns,
    )


def build_examples(config: RunConfig) -> Conversations:
    """Return the data layer of a run on conversations."""
    return Conversations(config)
