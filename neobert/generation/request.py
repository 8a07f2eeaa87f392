"""Settings of generated text, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["stop", "length", "interrupted"]
Message = dict[str, str]
"""One message of a conversation: its `role` and its `content`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings of a reply.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_p: tokens are drawn from the smallest set that has this share of the probability.
        max_tokens: maximum number of new tokens.
    """

    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEnd:
    """End of a reply: by a stop token, by the maximum number of tokens, or by Ctrl-C.

    Attributes:
        tokens: number of new tokens, with the one that ends the reply; None if a server does not report it.
    """

    reason: Reason
    tokens: int | None = None
