"""Keys and metrics in run files of supervised fine-tuning on conversations."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Literal

from neobert.schema_fields import ConfigSection, NonEmpty, key
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import TOKEN_METRICS

TYPICAL_SHARE = 0.5
"""Assumed share of supervised tokens before the conversations are rendered."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SftConfig(ConfigSection):
    """Conversations, and which of their text is supervised."""

    messages_column: NonEmpty | None = key(
        None,
        "Column with the messages; null: messages or conversations, else prompt and completion, else "
        "instruction, input and output.",
        affects="data",
    )
    turns: Literal["all", "last"] = key(
        "all", "Turns of the assistant that are supervised: all, or the last one.", affects="data"
    )
    supervise: Literal["auto", "marks", "prefix", "everything"] = key(
        "auto",
        "Supervised text: marks of the template ({% generation %}); prefix, what follows the generation "
        "prompt; auto: marks if the template has them, else prefix; everything: prompts too.",
        affects="data",
    )
    system_prompt: NonEmpty | None = key(
        None, "System prompt of conversations that have none.", affects="data"
    )
    template_date: NonEmpty | None = key(
        "2024-07-26",
        "Date (YYYY-MM-DD) that a chat template gets as today's; null: the day of the preparation.",
        affects="data",
    )
    control_tokens: Literal["refuse", "neutralize"] = key(
        "refuse",
        "Messages that spell a control token, such as <|im_end|>: refuse, or neutralize, which tokenizes "
        "them as plain text.",
        affects="data",
    )


SFT = TaskKeys(
    name="sft",
    package="neobert.tasks.sft",
    metrics=TOKEN_METRICS,
    section=SftConfig,
    about="Task sft: conversations and their supervised text.",
)
