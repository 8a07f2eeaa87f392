"""Changes of plug-ins between a checkpoint, or a launch, and now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from neobert.plugins.kinds import KINDS, SECTION

MARK = "  "
"""Separates digest and file in a line of `plugins.code`, as sha256sum does."""
ADDED, EDITED, REMOVED = "was added", "was edited", "was removed"


def plugin_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each plug-in or file that differs between two canonical configs.

    Functions are compared without the folder of their file, which may have moved.
    """
    before, now = saved.get("plugins", {}), current["plugins"]
    named = [
        f"{SECTION}{kind.name}: {_shown(left)} in the checkpoint, {_shown(right)} in this run"
        for kind in KINDS
        if (left := _functions(before.get(kind.name))) != (right := _functions(now[kind.name]))
    ]
    return (*changed_files(before.get("code", ()), now["code"]), *named)


def _functions(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value or []
    return [PurePath(str(each)).name for each in texts]


def _shown(functions: list[str]) -> str:
    return ", ".join(functions) or "none"


def files_in(lines: Iterable[str]) -> dict[str, str]:
    """Return digest or version of each file or package of `plugins.code`, by its name."""
    split = (each.partition(MARK) if MARK in each else each.rpartition(" ")[::-1] for each in lines)
    return {name: value for value, _, name in split}


def changed_files(saved: Iterable[str], current: Iterable[str]) -> list[str]:
    """Return a sentence for each file or package of `plugins.code` that differs: `helpers.py was edited`."""
    before, now = files_in(saved), files_in(current)
    names = sorted(before.keys() | now.keys())
    return [
        f"{name} {_change(name, before.get(name), now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _change(name: str, before: str | None, now: str | None) -> str:
    if before is None:
        return ADDED
    if now is None:
        return REMOVED
    return EDITED if name.endswith(".py") else f"was version {before} and is {now}"
