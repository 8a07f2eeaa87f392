"""Paths of a run file, which are relative to that file."""

from __future__ import annotations

import os.path

from neobert.config.keys import path_keys
from neobert.config.tree import Node, find, join, put


def relative_to_their_files(root: Node) -> tuple[Node, tuple[str, ...]]:
    """Rewrite the paths of run files so that they hold from the working directory.

    A path that exists only from the working directory stays as it is, which earlier versions read it as; its
    key is returned too. Profiles and the command line are relative to the working directory.
    """
    outdated = []
    for path, words in path_keys().items():
        node = find(root, path)
        if node is None or not isinstance(node.value, str) or node.value in words:
            continue
        moved = _from_its_file(node.value, node.origin.file) if node.origin.kind == "file" else node.value
        if moved == node.value:
            continue
        if os.path.exists(node.value) and not os.path.exists(moved):
            outdated.append(join(path))
        else:
            root = put(root, path, Node(moved, node.origin, node.key))
    return root, tuple(outdated)


def _from_its_file(value: str, file: str) -> str:
    folder = os.path.dirname(file)
    is_fixed = not value or value.startswith("~") or "://" in value or os.path.isabs(value)
    return value if is_fixed or os.path.normpath(folder or ".") == "." else os.path.join(folder, value)
