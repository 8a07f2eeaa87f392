"""Control tokens in messages as plain text: they are tokenized as if the tokenizer did not have them.

A copy of the tokenizer has its control tokens under other names, with noncharacters around them, and so has
the text where the template wrote them. Control tokens that a message spells are then plain text. The text is
tokenized as a whole, because SentencePiece treats the start of a text, and text after a control token,
differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from neobert.errors import ProjectError
from neobert.tasks.sft.rendered import Span

Ids = NDArray[np.int64]
NAMED = "\ufdd0{}\ufdd1"


def rename_control_tokens(backend: Tokenizer, control: re.Pattern[str]) -> Tokenizer:
    """Return a copy of a tokenizer whose control tokens have names that no text contains (`NAMED`)."""

    def name(text: str) -> str:
        return NAMED.format(text) if control.fullmatch(text) else text

    content: dict[str, Any] = json.loads(backend.to_str())
    model = content["model"]
    for token in content["added_tokens"]:
        token["content"] = name(token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name(token): at for token, at in model["vocab"].items()}
    else:  # Unigram: pairs of a token and its score
        model["vocab"] = [[name(token), score] for token, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = name(model["unk_token"])
    return Tokenizer.from_str(json.dumps(content))


def tokenize_neutral(
    backend: Tokenizer, text: str, plain: Sequence[Span], control: re.Pattern[str]
) -> tuple[Ids, Ids]:
    """Return the ids [T] and character offsets [T, 2] of a text whose control tokens in `plain` are text.

    `backend` is a renamed tokenizer. Raises `ProjectError` TOK001 if it does not find its control tokens.
    """
    pieces, marks, start = list[str](), list[int](), 0
    for span in [*plain, Span(len(text), len(text))]:
        for match in control.finditer(text, start, span.start):
            pieces.append(text[start : match.start()] + NAMED.format(match[0]))
            marks += [match.start() + len(marks), match.end() + len(marks) + 1]
            start = match.end()
        pieces.append(text[start : span.stop])
        start = span.stop
    encoding = backend.encode("".join(pieces), add_special_tokens=False)
    ids, offsets = np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2)
    names = {token.content: at for at, token in backend.get_added_tokens_decoder().items()}
    written = [at for name, at in names.items() if name[:1] == NAMED[0]]
    if 2 * int(np.isin(ids, written).sum()) != len(marks):
        message = "the tokenizer changes names of control tokens, and cannot distinguish them from text"
        raise ProjectError("TOK001", message, "set sft.control_tokens to refuse", "sft.control_tokens")
    return ids, offsets - np.searchsorted(np.array(marks, np.int64), offsets, side="left")
