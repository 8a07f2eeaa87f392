"""Only `neobert/tasks` names a task: rules, plan, kernels and families ask what a task does."""

import ast
import re
from collections.abc import Iterator, Sequence

import pytest

from neobert.tasks.table import TASKS
from tests.contracts.sources import nodes_of, nodes_of_packages

FOLDERS = [task.package.rpartition(".")[2] for task in TASKS.values()]
NAME = "|".join(TASKS)
TERMS = {"causal"}
"""Names of tasks that are also terms of the field: the direction of attention."""
ALONE = "|".join(TASKS.keys() - TERMS)
NAMED = re.compile(rf"(?:{ALONE})(?:\.\w+)?|(?:{NAME})\.\w+|.*\btask(?::| to| is)? (?:{NAME})\b.*", re.DOTALL)
IMPORTED = re.compile(rf"neobert\.tasks\.(?:{'|'.join(FOLDERS)})\b.*")
ALLOWED = {
    "neobert/evaluation/glue/settings.py": "GLUE is made of runs of one task",
}


def names_in(nodes: Sequence[ast.AST]) -> Iterator[int]:
    """Yield the lines that name a task, its section or its package. Docstrings may."""
    documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            is_name = NAMED.fullmatch(node.value)
        elif isinstance(node, ast.Attribute):
            is_name = node.attr in TASKS
        elif isinstance(node, ast.ImportFrom):
            is_name = IMPORTED.fullmatch(node.module or "")
        else:
            continue
        if is_name:
            yield node.lineno


def test_no_other_module_names_a_task():
    naming = {file for file, nodes in nodes_of_packages() if any(names_in(nodes))}
    assert {file for file in naming if not file.startswith("neobert/tasks/")} == set(ALLOWED)


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ('task == "pretrain"', True),
        ('key = "classification.pooling"', True),
        ('hint = f"set task to pretrain, or {key} to auto"', True),
        ("names = run.config.token_classification.label_names", True),
        ("from neobert.tasks.classification.spec import SPEC", True),
        ('"""A run of task pretrain."""', False),
        ('pipeline("text-classification")', False),
        ("from neobert.tasks.specs import spec_of", False),
    ],
)
def test_lines_that_name_a_task(line, is_named):
    assert any(names_in(nodes_of(line))) == is_named
