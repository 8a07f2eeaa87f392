"""Config keys that the program reads, recorded on access."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from neobert.config.annotations import hints_of, members_of
from neobert.config.schema import RunConfig

# Copying, comparing, printing or hashing a config is not use, and neither is access by the rehearsal.
BYSTANDERS = ("neobert.config", "neobert.rehearsal", "dataclasses", "copy", "builtins")


class _Recorded:
    """Stands before the slot of one key and notes who reads it."""

    def __init__(self, slot: Any, key: str, seen: set[str]) -> None:
        self._slot, self._key, self._seen = slot, key, seen

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self
        if not is_bystander(str(sys._getframe(1).f_globals.get("__name__", ""))):
            self._seen.add(self._key)
        return self._slot.__get__(owner, kind)

    def __set__(self, owner: Any, value: Any) -> None:
        self._slot.__set__(owner, value)


def is_bystander(module: str) -> bool:
    """Tell whether a read by this module makes no use of the value."""
    return any(module == name or module.startswith(f"{name}.") for name in BYSTANDERS)


@contextmanager
def recording_reads() -> Iterator[set[str]]:
    """Collect the dotted keys that are read while the block runs, in this process."""
    seen: set[str] = set()
    slots = [(kind, name, kind.__dict__[name], key) for kind, name, key in _keys(RunConfig, "")]
    for kind, name, slot, key in slots:
        setattr(kind, name, _Recorded(slot, key, seen))
    try:
        yield seen
    finally:
        for kind, name, slot, _ in slots:
            setattr(kind, name, slot)


def _keys(kind: Any, prefix: str) -> Iterator[tuple[Any, str, str]]:
    hints = hints_of(kind)
    for field in fields(kind):
        members = members_of(hints[field.name])
        for member in members:
            yield from _keys(member, f"{prefix}{field.name}.")
        if not members:
            yield kind, field.name, f"{prefix}{field.name}"
