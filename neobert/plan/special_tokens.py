"""Special token ids of a tokenizer, compared with the config.json of weights. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neobert.plan.tokenizer_contents import (
    ROLE_SPELLINGS,
    SETTINGS,
    content_or_empty,
    special_tokens,
    token_text,
)
from neobert.plan.vocabulary import token_ids
from neobert.runfiles.run_dir import CONFIG

SAME = {"bos": "cls", "cls": "bos", "eos": "sep", "sep": "eos"}
"""Roles of the same token in an encoder: the first token of a text, and the last one."""
ROLES = ("mask", *SAME, "pad")
DECLARING = ("special_tokens_map.json", SETTINGS)
"""Files that declare special tokens, in increasing order of precedence."""


def differing_special_tokens(weights: Path, tokenizer: Path) -> dict[str, tuple[int, int]]:
    """Return (id in the weights' config.json, id in the tokenizer) of each role in which the two differ.

    Roles that only one of them declares are ignored, as are ids beyond the embedding: defaults of the class.
    """
    settings, here = content_or_empty(weights / CONFIG), _role_ids(tokenizer)
    rows, found = settings.get("vocab_size"), dict[str, tuple[int, int]]()
    for role in ROLES:
        there = settings.get(f"{role}_token_id")
        known = [here[each] for each in (role, SAME.get(role)) if each in here]
        if type(there) is type(rows) is int and 0 <= there < rows and known and there not in known:
            found[role] = there, known[0]
    return found


def _role_ids(tokenizer: Path) -> dict[str, int]:
    """Return special token ids by role: as declared, else by the usual spelling, as in training.

    A spelling counts only if the token is special: `<s>` is an ordinary token of Qwen2, which has no bos.
    """
    ids, special, declared = token_ids(tokenizer), special_tokens(tokenizer), dict[str, Any]()
    for name in DECLARING:
        declared |= content_or_empty(tokenizer.parent / name)
    tokens = {role: token_text(declared.get(f"{role}_token")) or "" for role in ROLES}
    for key, spellings in ROLE_SPELLINGS.items():
        role = key.removesuffix("_token")
        tokens[role] = tokens.get(role) or next((each for each in spellings if each in special), "")
    return {role: ids[token] for role, token in tokens.items() if token in ids}
