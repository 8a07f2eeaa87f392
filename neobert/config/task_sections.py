"""Sections that a run file sets and the task of the run does not read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from neobert.config.canonical import to_plain
from neobert.config.keys import describe_field, sections
from neobert.config.nodes import Flaw, Node, children, find, plain

SectionsRead = Mapping[str, Collection[str]]
"""Task to the sections that it reads."""

TASK = ("task",)
GIVEN = ("file", "override")


def unread_sections(root: Node, sections_read: SectionsRead) -> Iterator[Flaw]:
    """Yield each section that a run file or an argument sets, and that the task does not read.

    Defaults that are written out do not count, nor does what a profile sets: it may serve several tasks.
    """
    task = _task(root)
    if task not in sections_read:
        return
    for name in sections():
        section = find(root, (name,))
        if section is None or name in sections_read[task]:
            continue
        place = next((node for key, node in children(section) if _is_set(name, key, node)), None)
        if place is not None:
            readers = [f"task: {other}" for other, read in sections_read.items() if name in read]
            choice = f", or write {' or '.join(readers)}" if readers else ""
            message = f"section {name} is not used by task {task}"
            yield Flaw("CFG001", (name,), message, f"remove section {name}{choice}", place.key)


def _task(root: Node) -> str:
    node, info = find(root, TASK), describe_field(TASK)
    assert info is not None
    return str(info.default if node is None else node.value)


def _is_set(section: str, key: str | int, node: Node) -> bool:
    info = describe_field((section, key))
    return node.key.kind in GIVEN and (info is None or to_plain(info.default) != plain(node))
