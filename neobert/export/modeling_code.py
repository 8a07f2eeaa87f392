"""Modeling code of a NeoBERT folder: `neobert/model`, merged into the files that auto_map names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TypeGuard

from neobert import kernel_table
from neobert import model as model_package

CONFIGURATION, MODELING = "configuration_neobert", "modeling_neobert"
FUTURE = "__future__"
LONGEST_LIST = 80
LOADER_OF_SIBLING = re.compile(r'(?<=loader="\.)\w+(?=:)')
"""Module in the loader of a kernel that the modeling code itself defines."""


@cache
def modeling_code() -> dict[str, str]:
    """Return the content of the modeling files by file name. They import torch and transformers only."""
    sources = {
        path.stem: path.read_text("utf-8") for path in Path(model_package.__file__).parent.glob("*.py")
    }
    table = Path(kernel_table.__file__).read_text("utf-8")
    sources["kernel_table"] = LOADER_OF_SIBLING.sub(MODELING, table)
    trees = {name: ast.parse(text) for name, text in sources.items()}
    first = import_order(CONFIGURATION, trees)
    second = [name for name in import_order(MODELING, trees) if name not in first]
    return {f"{names[-1]}.py": _merge_modules(names, sources, trees) for names in (first, second)}


def import_order(name: str, trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the module and the sibling modules that it imports, dependencies first."""
    siblings = [str(node.module) for node in trees[name].body if _is_sibling_import(node)]
    found = (each for sibling in siblings for each in import_order(sibling, trees))
    return list(dict.fromkeys([*found, name]))


def _is_sibling_import(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.level > 0


def _merge_modules(names: Sequence[str], sources: Mapping[str, str], trees: Mapping[str, ast.Module]) -> str:
    """Join modules: the docstring of the last, all imports, then the code of each below its own docstring."""
    nodes = [node for name in names for node in trees[name].body]
    parts = [f'"""{ast.get_docstring(trees[names[-1]], clean=False)}"""\n\n{_merge_imports(nodes, names)}']
    for name in names:
        about = f"{name}.py\n{ast.get_docstring(trees[name])}".split("\n")
        heading = "\n".join(f"# {line}".rstrip() for line in about)
        parts.append(f"{heading}\n\n{_module_body(sources[name], trees[name])}")
    return "\n\n\n".join(parts) + "\n"


def _merge_imports(nodes: Sequence[ast.stmt], merged: Sequence[str]) -> str:
    """Return one line for each imported module; names from other siblings come from the configuration."""
    plain = {ast.unparse(node) for node in nodes if isinstance(node, ast.Import)}
    by_module: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module not in merged:
            module = f".{CONFIGURATION}" if node.level else str(node.module)
            by_module[module] |= {ast.unparse(alias) for alias in node.names}
    by_module.pop(FUTURE)
    lines = [f"from {FUTURE} import annotations\n", *sorted(plain)]
    return "\n".join([*lines, *(_import_line(module, by_module[module]) for module in sorted(by_module))])


def _import_line(module: str, names: set[str]) -> str:
    listed = ", ".join(sorted(names))
    if len(listed) <= LONGEST_LIST:
        return f"from {module} import {listed}"
    wrapped = fill(listed, LONGEST_LIST, initial_indent="    ", subsequent_indent="    ")
    return f"from {module} import (\n{wrapped}\n)"


def _module_body(text: str, tree: ast.Module) -> str:
    """Return the text of a module after its docstring and imports."""
    ends = [node.end_lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join(text.split("\n")[ends[-1] :]).strip()
