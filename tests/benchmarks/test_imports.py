"""Every name that a benchmark takes from the project exists: most of them run on a GPU only, and seldom."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("**/*.py"))
PROJECT = ("launcher", "neobert", "profiles", "validators")


def test_names_of_the_project_exist():
    nodes = [(path.name, node) for path in SCRIPTS for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    for name, node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PROJECT:
            missing = [each.name for each in node.names if not is_there(str(node.module), each.name)]
            assert missing == [], f"{name}:{node.lineno}: {node.module} has no {', '.join(missing)}"


def is_there(module: str, name: str) -> bool:
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None


def test_a_name_that_is_gone_is_missed():
    assert is_there("neobert.errors", "ProjectError")
    assert is_there("neobert", "errors")
    assert not is_there("neobert", "mistakes")
