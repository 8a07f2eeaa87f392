"""Did you mean: over all sections, because a key in the wrong section is the commonest typo."""

from __future__ import annotations

from neobert.config.keys import all_keys, sections
from neobert.config.renamed import NAMES

CLOSE = 0.72
OTHER_SECTIONS = {"training": "trainer", "optim": "optimizer", "data": "dataset"}
"""Sections of other trainers whose names are no misspelling of ours."""


def closest(name: str, candidates: list[str]) -> str:
    """The candidate that is nearest in spelling, or an empty text."""
    from difflib import get_close_matches

    found = get_close_matches(name.replace("-", "_").lower(), candidates, n=1, cutoff=CLOSE)
    return found[0] if found else ""


def suggest_key(path: str) -> str:
    """The key that was meant: the same name elsewhere, then a close one here, then a close one anywhere."""
    if path in OTHER_SECTIONS:
        return OTHER_SECTIONS[path]
    section, _, name = path.rpartition(".")
    keys = all_keys()
    by_name: dict[str, list[str]] = {}
    for key in keys:
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    if name in by_name:
        return closest(path, by_name[name]) or by_name[name][0]
    here = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == section]
    if not section:
        here += sections()
    near = closest(name, here)
    if near:
        return f"{section}.{near}" if section else near
    far = closest(name, list(by_name))
    return by_name[far][0] if far else ""


def advice_for_near_name(name: str) -> str:
    """Say what to write instead of a name that is nearly one of another trainer's, or an empty text."""
    near = closest(name, list(NAMES))
    return f"{near} of other trainers: {NAMES[near]}" if near else ""
