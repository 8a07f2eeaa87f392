"""The plan and the rules ask a `ModelShape`, so they hold for every model family."""

import ast
from collections.abc import Iterator, Sequence

from tests.contracts.sources import nodes_of, nodes_of_packages

ROOMS = ("neobert/plan", "profiles", "validators", "launcher")


def reads_the_section(nodes: Sequence[ast.AST]) -> Iterator[int]:
    """Yield the lines that read the section `model` of a config, or import its class."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "model" and "config" in ast.unparse(node.value):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and any(name.name == "ModelConfig" for name in node.names):
            yield node.lineno


def test_only_families_read_the_section_model():
    found = [
        f"{file}:{line}" for file, nodes in nodes_of_packages(ROOMS) for line in reads_the_section(nodes)
    ]
    assert found == []


def test_the_test_sees_each_way_to_read_it():
    for line in (
        "run.config.model.hidden_size",
        "config.model",
        "from neobert.config.schema import ModelConfig",
    ):
        assert list(reads_the_section(nodes_of(line))) == [1]
    assert list(reads_the_section(nodes_of("plan.shape.hidden_size; path.model.config"))) == []
