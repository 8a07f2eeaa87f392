"""Lookup of keys by name, and suggestions for unknown keys from all sections."""

from __future__ import annotations

import re
from collections.abc import Iterable

from neobert.config.keys import KeyInfo, all_keys, describe_field, sections
from neobert.config.migrated_keys import advice_for_key, rename_table
from neobert.errors import EXIT_USAGE, ProjectError

CLOSE = 0.72
OTHER_SECTIONS = {"training": "trainer", "optim": "optimizer", "data": "dataset"}
"""Sections of other trainers whose names are not misspellings of ours."""
SHARED_WORDS = frozenset({"lr", "betas", "eps", "seed", "tf32", "nnodes", "streaming", "trackers"})
"""Names of one word that mean the same in every trainer."""

MAX_EDITS, SHORT_WORD = 2, 5
SHORTEST_ABBREVIATION = 4


def closest_name(name: str, candidates: list[str]) -> str:
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
    if elsewhere := key_in_other_section(path.replace("-", "_")):
        return elsewhere
    section, _, name = path.replace("-", "_").rpartition(".")
    meant = _intended_section(section)
    here = [key.rpartition(".")[2] for key in all_keys() if key.rpartition(".")[0] == meant]
    candidates = here if meant != "" else [*here, *sections()]
    if near := correct_spelling(name, candidates, may_be_short=True):
        return f"{meant}.{near}" if meant else near
    far = [key for key in all_keys() if _is_distinctive(key.rpartition(".")[2])]
    names = {key.rpartition(".")[2]: key for key in far}
    return names.get(correct_spelling(name, names), "") if "_" in name else ""


def _intended_section(section: str) -> str | None:
    """Return the section with this name, also in other trainers or misspelled; None if there is none."""
    if section in ("", *sections()):
        return section
    return OTHER_SECTIONS.get(section) or correct_spelling(section, sections(), may_be_short=True) or None


def key_in_other_section(path: str) -> str:
    """Return the key of another section with the same distinctive name; empty if not exactly one fits.

    Names such as `name`, `path`, `alpha` mean something else in the sections of other trainers.
    """
    section, _, name = path.rpartition(".")
    named = keys_named(name) if _is_distinctive(name) else []
    of_section = [key for key in named if correct_spelling(section, [key.rpartition(".")[0]])]
    return (of_section or named)[0] if len(of_section or named) == 1 else ""


def _is_distinctive(name: str) -> bool:
    return "_" in name or name in SHARED_WORDS


def advice_for_near_name(name: str) -> str:
    """Return a hint for a misspelt key of another trainer; empty if there is none."""
    names = rename_table()["names"]
    near = correct_spelling(name, names)
    return f"did you mean {near} of another trainer? {names[near]}" if near else ""


def describe_key(key: str) -> KeyInfo:
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
    """Return the keys with a word that starts with `word`: in their name first, then in their description.

    For a name such as max_len, each part starts a word of the key, in this order: max_seq_length.
    """
    starts = re.compile(r"(?<![a-z0-9])" + r"\w*_".join(map(re.escape, word.lower().split("_"))))
    by_name = [key for key in all_keys() if starts.search(key)]
    infos = ((key, describe_field(tuple(key.split(".")))) for key in all_keys() if key not in by_name)
    return by_name + [key for key, info in infos if info and starts.search(info.description.lower())]


def keys_named(name: str) -> list[str]:
    """Return the dotted keys whose last part is `name`, from all sections."""
    return [key for key in all_keys() if key.rpartition(".")[2] == name]


def correct_spelling(name: str, candidates: Iterable[str], *, may_be_short: bool = False) -> str:
    """Return the candidate that `name` misspells; empty if there is none.

    Args:
        may_be_short: whether a word of `name` may be the beginning of a word, as in gradient_clip.
    """
    written = name.replace("-", "_").lower()
    distances = ((_name_distance(written, each, may_be_short=may_be_short), each) for each in candidates)
    near = min(distances, key=lambda pair: pair[0], default=(MAX_EDITS + 1, ""))
    return near[1] if near[0] <= MAX_EDITS else ""


def _name_distance(name: str, other: str, *, may_be_short: bool) -> int:
    """Return the number of typing errors between two names; more than `MAX_EDITS` if words differ."""
    if abs(len(name) - len(other)) > MAX_EDITS + 2 * (may_be_short and SHORTEST_ABBREVIATION):
        return MAX_EDITS + 1
    words, others = name.split("_"), other.split("_")
    if len(words) != len(others):
        return 1 if name.replace("_", "") == other.replace("_", "") else MAX_EDITS + 1
    if sorted(words) == sorted(others):
        return int(words != others)
    pairs = zip(words, others, strict=True)
    return sum(_word_distance(*pair, may_be_short=may_be_short) for pair in pairs)


def _word_distance(word: str, other: str, *, may_be_short: bool) -> int:
    if may_be_short and len(word) >= SHORTEST_ABBREVIATION and other.startswith(word):
        return int(word != other)
    limit = 1 if min(len(word), len(other)) <= SHORT_WORD else MAX_EDITS
    number = edit_distance(word, other)
    return number if number <= limit else MAX_EDITS + 1


def edit_distance(word: str, other: str) -> int:
    """Return the number of letters to insert, remove, replace or swap.

    Returns `MAX_EDITS` + 1 if the lengths differ by more than `MAX_EDITS`.
    """
    if abs(len(word) - len(other)) > MAX_EDITS:
        return MAX_EDITS + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, meant in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != meant)))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (other[j - 2], meant):
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1]
