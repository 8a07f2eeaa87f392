"""Lookup of keys by name, and suggestions for unknown keys from all sections."""

from __future__ import annotations

import re

from neobert.config.keys import KeyInfo, all_keys, describe_field, sections
from neobert.config.migrated_keys import advice_for_key, table
from neobert.config.spelling import misspelt
from neobert.errors import EXIT_USAGE, ProjectError

CLOSE = 0.72
OTHER_SECTIONS = {"training": "trainer", "optim": "optimizer", "data": "dataset"}
"""Sections of other trainers whose names are not misspellings of ours."""
SHARED_WORDS = frozenset({"lr", "betas", "eps", "seed", "tf32", "nnodes", "streaming", "trackers"})
"""Names of one word that mean the same in every trainer."""


def closest(name: str, candidates: list[str]) -> str:
    """Return the candidate with the most similar spelling or the same letters; empty if there is none."""
    from difflib import get_close_matches

    wanted = name.replace("-", "_").lower()
    found = get_close_matches(wanted, candidates, n=1, cutoff=CLOSE)
    # The similarity of two swapped letters of a short name, such as rl, is low.
    return found[0] if found else next((each for each in candidates if sorted(each) == sorted(wanted)), "")


def suggest_key(path: str) -> str:
    """Return the key that was probably meant; empty if there is none.

    Search order: the same name in another section, a misspelling of a name in the same section, a misspelling
    of a name in any section.
    """
    if path in OTHER_SECTIONS:
        return OTHER_SECTIONS[path]
    if elsewhere := key_elsewhere(path.replace("-", "_")):
        return elsewhere
    section, _, name = path.replace("-", "_").rpartition(".")
    meant = _section_meant(section)
    here = [key.rpartition(".")[2] for key in all_keys() if key.rpartition(".")[0] == meant]
    candidates = here if meant != "" else [*here, *sections()]
    if near := misspelt(name, candidates, may_be_short=True):
        return f"{meant}.{near}" if meant else near
    far = [key for key in all_keys() if _is_distinctive(key.rpartition(".")[2])]
    names = {key.rpartition(".")[2]: key for key in far}
    return names.get(misspelt(name, names), "") if "_" in name else ""


def _section_meant(section: str) -> str | None:
    """Return the section of which a name is a misspelling, or the name of one; None if there is none."""
    if section in ("", *sections()):
        return section
    return OTHER_SECTIONS.get(section) or misspelt(section, sections(), may_be_short=True) or None


def key_elsewhere(path: str) -> str:
    """Return the key of another section with the same distinctive name; empty if not exactly one fits.

    Names such as `name`, `path`, `alpha` mean something else in the sections of other trainers.
    """
    section, _, name = path.rpartition(".")
    named = keys_named(name) if _is_distinctive(name) else []
    of_section = [key for key in named if misspelt(section, [key.rpartition(".")[0]])]
    return (of_section or named)[0] if len(of_section or named) == 1 else ""


def _is_distinctive(name: str) -> bool:
    return "_" in name or name in SHARED_WORDS


def advice_for_near_name(name: str) -> str:
    """Return a hint for a misspelt key of another trainer; empty if there is none."""
    names = table()["names"]
    near = misspelt(name, names)
    return f"did you mean {near} of another trainer? {names[near]}" if near else ""


def describe(key: str) -> KeyInfo:
    """Describe a key or a section. Raises ProjectError (CFG001) with a suggestion for an unknown key."""
    path = tuple(key.split("."))
    info = describe_field(path)
    if info is not None:
        return info
    near = suggest_key(key)
    guess = f"did you mean {near}?" if near else advice_for_near_name(path[-1])
    hint = advice_for_key(path) or guess or "`neobert-launch schema` lists the keys"
    raise ProjectError("CFG001", f"{key or repr(key)} is not a key", hint, exit_code=EXIT_USAGE)


def keys_about(word: str) -> list[str]:
    """Return the keys with a word that starts like `word`: in their name first, then in their description.

    Of a name such as max_len, each part starts a word of the key, in this order: max_seq_length.
    """
    starts = re.compile(r"(?<![a-z0-9])" + r"\w*_".join(map(re.escape, word.lower().split("_"))))
    by_name = [key for key in all_keys() if starts.search(key)]
    infos = ((key, describe_field(tuple(key.split(".")))) for key in all_keys() if key not in by_name)
    return by_name + [key for key, info in infos if info and starts.search(info.description.lower())]


def keys_named(name: str) -> list[str]:
    """Return the dotted keys whose last part is `name`, from all sections."""
    return [key for key in all_keys() if key.rpartition(".")[2] == name]
