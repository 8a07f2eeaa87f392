"""A pytest plugin that runs, for each mutant, the tests that can see it, in place of all tests once.

The tests are collected once. Each mutant lives in a forked child, where the edited module takes the place of
the imported one.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TextIO

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant, parse
from tests.mutation.targets import CODE, ROOT, Suite, codes_in
from tests.mutation.transplant import transplant
from tests.mutation.watch import Lines, watching

SURVIVED, KILLED, STILLBORN = 0, 1, 2
CANNOT_TELL = 3
CPU_LIMIT_S, WALL_LIMIT_S = 120, 1200
"""Of one mutant, which may have made a loop endless; other programs may slow it down tenfold."""


@dataclass
class Seen:
    """A test, what it ran of the judged files, and how long it took."""

    item: pytest.Item
    lines: Lines
    duration_s: float
    codes: frozenset[str]


@dataclass
class Outcome:
    """How the mutants of a suite ended."""

    killed: list[Mutant] = field(default_factory=list)
    survived: list[Mutant] = field(default_factory=list)
    stillborn: list[Mutant] = field(default_factory=list)
    num_tests: int = 0


class Scorer:
    """Run the mutants of a suite."""

    def __init__(self, suite: Suite, mutants: Sequence[Mutant], *, jobs: int) -> None:
        self.suite, self.mutants, self.jobs = suite, mutants, jobs
        self.outcome = Outcome()
        self.trouble = ""
        self.failing: list[str] = []
        self.files = sorted({mutant.file for mutant in mutants})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the files of tests that cannot be loaded."""
        if report.failed:
            self.failing.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the loop over: watch each test once, then run the mutants, a few at a time."""
        seen = self._watch(session.items)
        self.outcome.num_tests = len(seen)
        self._control(seen)
        running: dict[int, Mutant] = {}
        for number, mutant in enumerate(self.mutants, 1):
            asked = chosen_for(mutant, seen)
            running[self._start(partial(_judge, [mutant], asked))] = mutant
            if len(running) >= self.jobs:
                self._wait(running)
            self._tell(number)
        while running:
            self._wait(running)
        self._control(seen)
        return True

    def _tell(self, number: int) -> None:
        if sys.stderr.isatty() or number % 100 == 0:
            end = "\r" if sys.stderr.isatty() else "\n"
            print(f"{self.suite.name}: {number} of {len(self.mutants)}", end=end, file=sys.stderr, flush=True)

    def _watch(self, items: Sequence[pytest.Item]) -> list[Seen]:
        """A test that fails as things are kills every mutant that it meets: then there is no score."""
        seen = []
        for item in items:
            started = time.perf_counter()
            with watching(str(file) for file in self.suite.files) as lines:
                reports = runtestprotocol(item, log=False, nextitem=None)
            self.failing += [f"{item.nodeid}\n{report.longreprtext}" for report in reports if report.failed]
            codes = frozenset(CODE.findall(item.nodeid))
            seen.append(Seen(item, lines, time.perf_counter() - started, codes))
        if self.failing:
            self._refuse("these fail with nothing edited:\n" + "\n".join(self.failing))
        return seen

    def _control(self, seen: Sequence[Seen]) -> None:
        """Modules that are put in their own place, unedited, disturb no test, or every kill is a lie.

        Request before the first mutant and behind the last: what breaks the tests in between kills them all.
        """
        unedited = [Mutant(file, "", 0, 0, 0, "", "", parse(file), lambda: None) for file in self.files]
        with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as told:
            _, status = os.waitpid(self._start(lambda: _judge(unedited, seen, told)), 0)
            code = os.waitstatus_to_exitcode(status)
            if code != SURVIVED:
                told.seek(0)
                self._refuse(f"with modules put in their own place unedited: {told.read() or code}")

    def _refuse(self, trouble: str) -> NoReturn:
        self.trouble = trouble
        pytest.exit(trouble, CANNOT_TELL)

    def _start(self, judge: Callable[[], int]) -> int:
        child = os.fork()
        if child:
            return child
        code = STILLBORN
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
            signal.alarm(WALL_LIMIT_S)
            code = judge()
        finally:
            os._exit(code)

    def _wait(self, running: dict[int, Mutant]) -> None:
        """Whatever ends a child but its own word, such as the alarm of an endless loop, noticed the edit."""
        child, status = os.wait()
        mutant = running.pop(child)
        code = os.waitstatus_to_exitcode(status)
        ended = {SURVIVED: self.outcome.survived, STILLBORN: self.outcome.stillborn}
        ended.get(code, self.outcome.killed).append(mutant)


def _judge(mutants: Sequence[Mutant], asked: Sequence[Seen], told: TextIO | None = None) -> int:
    """Put edited modules in place and run tests until one fails, whose name and words go to `told`."""
    for mutant in mutants:
        mutant.apply()
        try:
            transplant(importlib.import_module(".".join(mutant.file.with_suffix("").parts)), mutant.tree)
        except Exception:
            return STILLBORN
    for one in asked:
        failed = [report for report in runtestprotocol(one.item, log=False, nextitem=None) if report.failed]
        if failed:
            print(one.item.nodeid, failed[0].longreprtext, file=told or sys.stdout, flush=True)
            return KILLED
    return SURVIVED


def chosen_for(mutant: Mutant, seen: Sequence[Seen]) -> list[Seen]:
    """Tests that ran the mutant's statement and look at its rule, or at no rule by name; quick ones first.

    What runs outside of functions, such as a limit, a rule's severity or a default of a dataclass, may be
    read by any test.
    """
    file = str(ROOT / mutant.file)
    codes = codes_in(mutant.file).get(mutant.function.partition(".")[0], frozenset())
    lines = set(range(mutant.first, mutant.last + 1))
    if not mutant.function:
        return sorted(seen, key=lambda one: (not one.codes & codes, one.duration_s))
    asked = [one for one in seen if not one.codes or not codes or one.codes & codes]
    ran = [one for one in asked if one.lines.get(file, set()) & lines]
    return sorted(ran or asked, key=lambda one: (not one.codes & codes, one.duration_s))
