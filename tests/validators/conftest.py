"""Situations that rules are judged in: a run file, recorded facts, a measurement, a day. See `fixtures/`."""

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.commands import lint
from neobert.config import ConfigError
from neobert.plan import Measured
from profiles.registry import resolve_run
from validators.core import findings_from_config_error, judge
from validators.facts import Facts
from validators.facts_io import facts_from_json
from validators.finding import CheckResult, Finding, Level, Status
from validators.planning import plan_run
from validators.rule import RULES, RaisedBy

FIXTURES = Path(__file__).parent / "fixtures"
ALL_LEVELS = tuple(Level)
RECORDED = (FIXTURES / "facts.json").read_text(encoding="utf-8")
FACTS = facts_from_json(RECORDED)


Report = tuple[list[Finding], dict[str, CheckResult]]


class Judged:
    """What was found, and how each check ended: by the rules of all levels, or of the level asked for."""

    def __init__(self, report_of: Callable[[tuple[Level, ...]], Report]) -> None:
        self.report_of = cache(report_of)

    @property
    def findings(self) -> list[Finding]:
        return self.report_of(ALL_LEVELS)[0]

    @property
    def checks(self) -> dict[str, CheckResult]:
        return self.report_of(ALL_LEVELS)[1]

    def at_level_of(self, code: str) -> Report:
        """Waivers are judged after the rules of all levels, and every other rule by itself."""
        rule = RULES[code]
        return self.report_of(ALL_LEVELS if rule.raised_by is RaisedBy.WAIVERS else (rule.level,))

    def of(self, code: str) -> list[Finding]:
        found = self.at_level_of(code)[0]
        return [finding for finding in found if finding.code == code and not finding.waived]

    def status(self, code: str) -> Status:
        """A file that the loader refused has no checks: the code that it raised has failed."""
        checks = self.at_level_of(code)[1]
        if code in checks:
            return checks[code].status
        return Status.FAIL if self.of(code) else Status.UNKNOWN


Situation = dict[str, Any]
Judge = Callable[..., Judged]


def put(tree: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        tree = tree[int(name)] if isinstance(tree, list) else tree.setdefault(name, {})
    tree[last] = value


def part(situation: Situation, prefix: str) -> dict[str, Any]:
    return {key[len(prefix) + 1 :]: value for key, value in situation.items() if key.startswith(f"{prefix}.")}


def write_run(situation: Situation, folder: Path) -> Path:
    """The run file of a situation, with a text of `text_bytes`; JSON is YAML."""
    file = folder / "run.yaml"
    file.unlink(missing_ok=True)  # some filesystems wait for the disk where a file is written over
    if "text" in situation:
        file.write_text(situation["text"], encoding="utf-8")
        return file
    config: dict[str, Any] = {"profile": situation.get("profile", "a100-prod")}
    if "text_bytes" in situation:
        text = folder / "text.txt"
        text.touch()
        os.truncate(text, situation["text_bytes"])
        put(config, "dataset.path", str(text))
    for path, value in part(situation, "config").items():
        put(config, path, value)
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def measured_in(situation: Situation) -> Measured:
    given = {"step_time_s": None, "memory_mib": None, "source": "a rehearsal"} | part(situation, "measured")
    return Measured(**given)


def facts_in(situation: Situation) -> Facts:
    changes = part(situation, "facts")
    if not changes:
        return FACTS
    recorded = json.loads(RECORDED)
    for path, value in changes.items():
        put(recorded, path, copy.deepcopy(value))
    return facts_from_json(json.dumps(recorded))


def judge_run(situation: Situation, folder: Path) -> Judged:
    try:
        file, overrides = write_run(situation, folder), situation.get("overrides", [])
        run = resolve_run(None, [file], overrides)
    except ConfigError as error:
        refused = findings_from_config_error(error)
        return Judged(lambda levels: (refused, {}))
    if situation.get("digest"):
        run = replace(run, digest=situation["digest"])
    plan, facts = plan_run(run, measured_in(situation)), facts_in(situation)
    today = situation.get("today", date(2026, 1, 15))

    def report_of(levels: tuple[Level, ...]) -> Report:
        findings, checks = judge(run, plan, facts, levels, today=today)
        return findings, {check.id: check for check in checks}

    return Judged(report_of)


def judge_repository(texts: list[str], folder: Path) -> Judged:
    files = [folder / f"run-{number}.yaml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    report = lint.combine_results([lint.check_file(file) for file in files], strict=False, has_folder=True)
    checks = {check.id: check for check in report.checks}
    return Judged(lambda levels: (list(report.findings), checks))


def judge_in(folder: Path, situation: Situation) -> Judged:
    if "repository" in situation:
        return judge_repository(situation["repository"], folder)
    return judge_run(situation, folder)


@pytest.fixture
def judge_situation(tmp_path: Path) -> Judge:
    """Judge a situation: dotted keys `config.*`, `facts.*`, `measured.*`, and a few plain ones."""
    return lambda situation=None, **more: judge_in(tmp_path, (situation or {}) | more)


@pytest.fixture(scope="session")
def judge_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Situation], Judged]:
    """Judge a situation in the same way, once for all tests that share it."""
    judged: dict[str, Judged] = {}
    folder = tmp_path_factory.mktemp("situations")

    def judge_first(situation: Situation) -> Judged:
        key = repr(situation)
        if key not in judged:
            own = folder / str(len(judged))
            own.mkdir()
            judged[key] = judge_in(own, situation)
        return judged[key]

    return judge_first
