"""Lookup of keys by name, and suggestions for unknown keys from all sections."""

from __future__ import annotations

from neobert.config.keys import KeyInfo, all_keys, describe_field, sections
from neobert.config.migrated_keys import NAMES, advice_for_key
from neobert.errors import EXIT_USAGE, ProjectError

CLOSE = 0.72
OTHER_SECTIONS = {"training": "trainer", "optim": "optimizer", "data": "dataset"}
"""Sections of other trainers whose names are not misspellings of ours."""


def closest(name: str, candidates: list[str]) -> str:
    """Return the candidate with the most similar spelling or the same letters; empty if there is none."""
    from difflib import get_close_matches

    wanted = name.replace("-", "_").lower()
    found = get_close_matches(wanted, candidates, n=1, cutoff=CLOSE)
    # The similarity of two swapped letters of a short name, such as rl, is low.
    return found[0] if found else next((each for each in candidates if sorted(each) == sorted(wanted)), "")


def suggest_key(path: str) -> str:
    """Return the key that was probably meant; empty if there is none.

    Search order: the same name in another section, a similar name in the same section, a similar name
    anywhere.
    """
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
    """Return a hint for a name that is similar to a key of another trainer; empty if there is none."""
    near = closest(name, list(NAMES))
    return f"did you mean {near} of another trainer? {NAMES[near]}" if near else ""


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


def keys_named(name: str) -> list[str]:
    """Return the dotted keys whose last part is `name`, from all sections."""
    return [key for key in all_keys() if key.rpartition(".")[2] == name]
