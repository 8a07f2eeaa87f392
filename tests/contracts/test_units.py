"""Powers of two are MiB and GiB everywhere: the label GB hid the fault that this project exists for."""

import ast
import re
from collections.abc import Iterator, Sequence

from tests.contracts.sources import nodes_of, nodes_of_packages

DECIMAL_LABEL = re.compile(r"(?<![A-Za-z])[MG]B(?![A-Za-z/])")


def strings_of(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    pages = {id(node.body[0].value) for node in nodes if has_docstring(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pages:
            yield node.lineno, node.value


def has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return ast.get_docstring(node, clean=False) is not None


def decimal_labels(nodes: Sequence[ast.AST]) -> list[int]:
    return [line for line, text in strings_of(nodes) if DECIMAL_LABEL.search(text)]


def test_no_string_labels_memory_in_decimal_units():
    offenders = [f"{file}:{line}" for file, nodes in nodes_of_packages() for line in decimal_labels(nodes)]
    assert not offenders


def test_a_planted_label_is_caught():
    assert decimal_labels(nodes_of('print(f"{mib / 1024:.1f} GB")')) == [1]
    assert decimal_labels(nodes_of('print(f"{mib / 1024:.1f} GiB")')) == []
