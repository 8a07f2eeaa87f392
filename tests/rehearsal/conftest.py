"""Rehearsals of a tiny run in this process, so that faults can be planted in the trainer."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from launcher.preflight.driver_memory import externally_reported_memory
from launcher.preflight.rehearsal_facts import combine_records
from neobert.rehearsal import parent
from neobert.rehearsal.__main__ import rehearse
from neobert.training.loop.signals import Signals
from profiles.registry import ResolvedRun, resolve_run
from tests.training.conftest import global_settings_restored, tiny_config, write_corpus
from validators.core import judge
from validators.facts import Facts, ProbeRecord
from validators.facts_rehearsal import RehearsalFacts, WatchdogFacts
from validators.finding import CheckResult, Finding, Level, Status
from validators.planning import plan_run
from validators.rehearsal_parts import rehearsal_measurements

AGAIN = ("resumed", "resumed_again")
WATCHED = WatchdogFacts(budget_s=2.0, detected_s=2.1, survivors=0)


class Enough(BaseException):
    """Ends a session where a child would stand still until it is killed."""


@dataclass(frozen=True)
class Verdict:
    """What was seen of a rehearsal, and how its checks ended."""

    seen: dict[str, Any]
    facts: RehearsalFacts
    findings: list[Finding]
    checks: dict[str, CheckResult]

    @property
    def failed(self) -> set[str]:
        """Codes that did not pass, but for the pace: on a busy machine that is anybody's guess."""
        judged = {Status.FAIL, Status.WARN, Status.UNKNOWN}
        return {code for code, check in self.checks.items() if check.status in judged} - {"PRF003"}

    def message(self, code: str) -> str:
        return self.checks[code].message


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> dict[str, str]:
    return write_corpus(tmp_path_factory.mktemp("rehearsed"))


def resolve(folder: Path, text: dict[str, str], sections: dict[str, Any]) -> ResolvedRun:
    trainer = {"max_steps": 200, "save_steps": 200, "output_dir": str(folder / "runs" / "tiny")}
    config = tiny_config({"dataset": text, "trainer": trainer}, sections)
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return resolve_run(None, [file])


def perform(name: str, run: ResolvedRun, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rehearse in this process; return what was seen from inside, and from outside."""
    outside: dict[str, Any] = {"system_rss_mib": None, "driver_mib": None}
    out = folder / f"{name}_rank0.json"

    def hold(_: Any, measured: Path) -> None:
        outside.update(externally_reported_memory(json.loads(measured.read_text(encoding="utf-8")), {}))

    ends = mock.patch.multiple(parent, hang_until_killed=mock.Mock(side_effect=Enough), wait_for_parent=hold)
    with global_settings_restored(), suppress(Enough), ends:
        rehearse(name, run.config, folder, Signals())
    return json.loads(out.read_text(encoding="utf-8")), outside


def judge_rehearsal(run: ResolvedRun, found: RehearsalFacts, levels: tuple[Level, ...]) -> tuple[Any, Any]:
    facts = Facts(rehearsal=found, probes=(ProbeRecord(name="rehearsal", status="ok"),))
    findings, checks = judge(run, plan_run(run, rehearsal_measurements(facts)), facts, levels)
    return findings, {check.id: check for check in checks}


def rehearse_whole(
    folder: Path, text: dict[str, str], sections: dict[str, Any], again: Sequence[str] = AGAIN
) -> Verdict:
    """Do what the launcher does, with a session that ends in place of a child that is killed."""
    run = resolve(folder, text, sections)
    fresh, outside = perform("fresh", run, folder)
    resumes = [[perform(name, run, folder)[0]] for name in again if not fresh.get("out_of_memory")]
    found = combine_records([fresh], resumes, outside, None if not resumes else WATCHED, 1, 1.0)
    findings, checks = judge_rehearsal(run, found, (Level.REHEARSAL,))
    return Verdict(fresh, found, findings, checks)


@pytest.fixture(scope="session")
def healthy(tmp_path_factory, text) -> Verdict:
    """The rehearsal of a run in which nothing is wrong."""
    return rehearse_whole(tmp_path_factory.mktemp("healthy"), text, {})


@pytest.fixture
def rehearsal(tmp_path, text) -> Callable[..., Verdict]:
    """Rehearse a tiny run, changed as asked, with whatever fault the test has planted."""
    return lambda **sections: rehearse_whole(tmp_path, text, sections)


@pytest.fixture
def first_session(tmp_path, text) -> Callable[..., Verdict]:
    """Rehearse as `rehearsal` does, but without the resumes, on which few checks depend."""
    return lambda **sections: rehearse_whole(tmp_path, text, sections, again=())
