"""No module imports itself by way of others, also not inside functions: each can be read by itself."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("launcher", "validators", "profiles", "neobert")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_is_in_a_cycle(imports):
    TopologicalSorter(imports).prepare()


def test_a_planted_cycle_is_found(imports):
    planted = imports | {"neobert.errors": {"launcher.cli.app"}}
    with pytest.raises(CycleError, match="nodes are in a cycle"):
        TopologicalSorter(planted).prepare()
