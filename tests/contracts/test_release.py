"""The version is written in one place, and workflows run what the Makefile has."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from neobert import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text("utf-8"))
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}


def jobs_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return list(workflow["jobs"].values())


def steps_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in jobs_of(workflow) for step in job["steps"]]


def test_the_package_reads_its_version_from_the_code():
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    source = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert source.read_text("utf-8").count(f'__version__ = "{__version__}"') == 1


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_only_read_and_ends_in_time(name):
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert all(0 < job["timeout-minutes"] <= 120 for job in jobs_of(workflow))
    assert not any("permissions" in job for job in jobs_of(workflow))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_to_a_major_version(name):
    used = [step["uses"] for step in steps_of(WORKFLOWS[name]) if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"actions/(checkout|setup-python)@v\d+", each)] == []


def test_workflows_run_targets_that_exist_and_all_that_a_change_must_pass():
    run = {}
    for name, workflow in WORKFLOWS.items():
        lines = [step["run"] for step in steps_of(workflow) if "run" in step]
        targets = [re.search(r"make PYTHON=python (.+)$", line) for line in lines]
        run[name] = {each[1] for each in targets if each is not None}
        installing = [line for line, each in zip(lines, targets, strict=True) if each is None]
        assert all(line.startswith("sudo apt-get ") for line in installing), "CI runs what people run: make"
    (slow,) = WORKFLOWS["nightly.yml"]["jobs"].values()
    nightly = set(slow["strategy"]["matrix"]["target"])
    assert run == {
        "ci.yml": {"lint", "site", "unit", "test", "test-wheel", "slurm-test"},
        "nightly.yml": {"${{ matrix.target }}"},
    }
    assert nightly == {"test-thorough", "test-torchao", "test-faults", "mutation"}
    assert [each for each in run["ci.yml"] | nightly if f"\n{each}: " not in MAKEFILE] == []


def test_workflows_test_each_python_that_the_package_declares():
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    tested = WORKFLOWS["ci.yml"]["jobs"]["tests"]["strategy"]["matrix"]["python-version"]
    assert tested == declared


def test_each_section_of_the_changelog_has_each_group_once():
    for section in (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1:]:
        groups = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert groups == sorted(set(groups), key=["Added", "Changed", "Fixed", "Removed"].index), groups
        unfinished = re.findall(r"^- [^\n]*(?:\n  [^\n]*)*(?<!\.)$(?!\n  )", section, re.MULTILINE)
        assert [each[:60] for each in unfinished] == []
