"""Differences of plug-ins from those in a checkpoint or an earlier launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.plugins.kinds import KINDS, SECTION

CODE = "PLG003"
MARK = "  "
"""Separator of digest and file name in a line of `plugins.code`, as in the output of sha256sum."""
ADDED, EDITED, REMOVED = "was added", "was edited", "was removed"


def plugin_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each plug-in or file that differs between two canonical configs.

    Functions are compared without the folder of their file, which may have moved.
    """
    before, now = saved.get("plugins", {}), current["plugins"]
    named = [
        f"{SECTION}{kind.name}: {_format_functions(left)} in the checkpoint, "
        f"{_format_functions(right)} in this run"
        for kind in KINDS
        if (left := _named_functions(before.get(kind.name))) != (right := _named_functions(now[kind.name]))
    ]
    return (*changed_files(before.get("code", ()), now["code"]), *named)


def _named_functions(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value or []
    return [PurePath(str(each)).name for each in texts]


def _format_functions(functions: list[str]) -> str:
    return ", ".join(functions) or "none"


def file_digests(lines: Iterable[str]) -> dict[str, str]:
    """Parse lines of `plugins.code`; return the digest or version of each file or package by name."""
    split = (each.partition(MARK) if MARK in each else each.rpartition(" ")[::-1] for each in lines)
    return {name: value for value, _, name in split}


def changed_files(saved: Iterable[str], current: Iterable[str]) -> list[str]:
    """Return a sentence for each file or package of `plugins.code` that differs: `helpers.py was edited`."""
    before, now = file_digests(saved), file_digests(current)
    names = sorted(before.keys() | now.keys())
    return [
        f"{name} {_describe_change(name, before.get(name), now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _describe_change(name: str, before: str | None, now: str | None) -> str:
    if before is None:
        return ADDED
    if now is None:
        return REMOVED
    return EDITED if name.endswith(".py") else f"was version {before} and is {now}"


def refuse_edited_plugins(folder: Path, saved: Mapping[str, Any], config: RunConfig) -> None:
    """Raise `ProjectError` PLG003 if plug-ins differ from those of the checkpoint, without a waiver."""
    differences = plugin_differences(saved, to_dict(config))
    if differences and all(each.code != CODE for each in config.waivers):
        message = f"the checkpoint belongs to a run with other plug-ins: {'; '.join(differences)}"
        hint = f"restore the files, or add a waiver of {CODE} to the run file"
        raise ProjectError(CODE, message, hint, str(folder))
