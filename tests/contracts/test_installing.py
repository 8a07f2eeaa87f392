"""Every hint that says what to install says the same, and what it says can be typed anywhere."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from launcher.run.study import INSTALL as OPTUNA
from neobert.adapters.spec import INSTALL as LORA
from neobert.evaluation.mteb_suite.__main__ import INSTALL as MTEB
from neobert.export_formats import FORMATS
from neobert.kernel_table import OPTIONAL_PACKAGES, install_line
from neobert.precision.torchao.spec import TORCHAO
from neobert.trackers.table import TRACKERS

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = ("neobert", "launcher", "validators", "profiles", "neobert_launch")
ROOMS = (*PACKAGES, "docs")
KERNELS = {package.extra: install_line(package) for package in OPTIONAL_PACKAGES if package.extra}
EXPORTS = {
    name.removesuffix("-ready"): each.install_command for name, each in FORMATS.items() if each.requirements
}
TRACKED = {name: tracker.install for name, tracker in TRACKERS.items() if tracker.package}
OTHERS = {"mteb": MTEB, "lora": LORA, "optuna": OPTUNA, "torchao": TORCHAO.install}
NAME = re.compile(r"[\w-]+")
IMPORTED = re.compile(r"""^ *(?:from|import) (\w+)|(?:import_module|find_spec)\("(\w+)""", re.MULTILINE)
PART_OF_TORCH = "triton"
QUOTED = re.compile(r"'([a-z][a-z0-9-]*(?:\[[a-z,]+\])?>=[^']+)'")


def test_a_line_installs_what_each_extra_does():
    # Both import transformers, which no other test of the unit set needs.
    from neobert.data.datatrove_step import INSTALL as DATATROVE
    from neobert.data.store.remote import INSTALL as S3

    install = KERNELS | EXPORTS | TRACKED | OTHERS | {"datatrove": DATATROVE, "s3": S3}
    assert install.keys() == EXTRAS.keys()
    for extra, packages in EXTRAS.items():
        assert QUOTED.findall(install[extra]) == [each.partition(";")[0] for each in packages], extra


def test_the_kernel_that_is_built_against_torch_is_built_in_the_environment_of_torch():
    assert "--no-build-isolation" in KERNELS["flash"]


def test_no_hint_asks_an_index_for_this_project():
    files = [file for room in ROOMS for kind in ("*.py", "*.md") for file in (ROOT / room).rglob(kind)]
    assert [str(file) for file in files if "neobert-launch[" in file.read_text("utf-8")] == []


def test_the_page_of_installing_names_each_extra():
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert [extra for extra in EXTRAS if f"`{extra}`" not in page] == []


owners_of_modules = cache(packages_distributions)


def distributions_imported_by(folders: Iterable[str]) -> set[str]:
    """Return the installed distributions that own a module which a file below one of the folders imports."""
    owners = owners_of_modules()
    files = [file.read_text("utf-8") for folder in folders for file in (ROOT / folder).rglob("*.py")]
    modules = {first or second for text in files for first, second in IMPORTED.findall(text)}
    found = {owner.lower().replace("_", "-") for module in modules for owner in owners.get(module, ())}
    return found - {PROJECT["name"], PART_OF_TORCH}


def names(requirements: Iterable[str]) -> set[str]:
    return {NAME.match(each)[0].lower() for each in requirements}


def test_what_is_imported_is_declared_and_what_is_required_is_imported():
    imported = distributions_imported_by(PACKAGES)
    required = names(PROJECT["dependencies"])
    assert imported - required - names(each for extra in EXTRAS.values() for each in extra) == set()
    assert required - imported == set()


def test_what_the_tests_import_is_declared():
    declared = [*PROJECT["dependencies"], *PYPROJECT["dependency-groups"]["dev"]]
    optional = names([*EXTRAS["mteb"], *EXTRAS["torchao"]])
    imported = distributions_imported_by(["tests"])
    assert imported - names(declared) - optional == set()
