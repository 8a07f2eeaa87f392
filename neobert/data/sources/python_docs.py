"""Corpus of the documentation in CPython: language topics and docstrings of the standard library.

Docstrings are parsed from source, and nothing is imported. Two interpreters of the same build give the same
documents in the same order. Without `pydoc_data`, which some distributions leave out, the corpus has only
docstrings, and its label states this.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from neobert.errors import ProjectError

NAME = "builtin:python-docs"
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "pydoc_data"}
_KINDS: dict[type, str] = {
    ast.Module: "module",
    ast.ClassDef: "class",
    ast.FunctionDef: "function",
    ast.AsyncFunctionDef: "function",
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COLUMNS = ("text", "kind")


def python_docs_label() -> str:
    """Return the corpus name with the Python version and the kinds of documents of this interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    parts = (
        "language topics and docstrings"
        if _has_topics()
        else "docstrings only, this Python has no pydoc_data"
    )
    return f"{NAME} ({version}: {parts})"


def interpreter_build() -> str:
    """Return the version and library path of this Python, which determine the documentation."""
    return f"{sys.version} {sysconfig.get_path('stdlib')}"


def python_docs() -> list[tuple[str, str]]:
    """Collect the documents, each with its kind: topic, module, class or function.

    Documents are unique and sorted by their hashes, so any slice is a random sample.
    Raises DAT001 if the interpreter has neither topics nor sources.
    """
    collected: dict[str, str] = {}
    for text, kind in chain(_topics(), _docstrings(Path(sysconfig.get_path("stdlib")))):
        collected.setdefault(text, kind)
    documents = sorted(collected.items(), key=lambda document: sha256(document[0].encode()).digest())
    if not documents:
        raise ProjectError(
            "DAT001",
            "this Python has neither pydoc_data nor the sources of its standard library",
            "set dataset.path to a file or folder with text",
            NAME,
        )
    return documents


def _has_topics() -> bool:
    return find_spec("pydoc_data") is not None and find_spec("pydoc_data.topics") is not None


def _topics() -> list[tuple[str, str]]:
    if not _has_topics():
        return []
    from pydoc_data.topics import topics

    return [(topics[name].strip(), "topic") for name in sorted(topics)]


def _docstrings(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        if not _LEFT_OUT.intersection(path.relative_to(root).parts):
            yield from _file_docstrings(path)


def _file_docstrings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # templates and sources kept broken on purpose
    for node in _walk_statements(tree):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            # An escape sequence may be half of a surrogate pair.
            yield text.strip().encode("utf-8", "replace").decode(), _KINDS[type(node)]


def _walk_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield nodes like `ast.walk`, but skip expressions, which contain no definitions."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
        yield node
