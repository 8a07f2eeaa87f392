"""All tasks by name, and the suites they belong to. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from neobert.evaluation.glue import glue_tasks, superglue

LEFT_OUT = {"record": "it chooses among the entities of a passage, and runs here classify single texts"}
"""Tasks of the suites without an evaluation here, and the reason."""

TASKS = {task.name: task for task in (*glue_tasks.TASKS, *superglue.TASKS)}


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark of several tasks.

    Attributes:
        averaged: tasks that its average includes.
        others: tasks that papers exclude from the average.
        shared: tasks that also belong to another suite.
    """

    name: str
    averaged: tuple[str, ...]
    others: tuple[str, ...] = ()
    shared: tuple[str, ...] = ("rte",)

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks of the suite."""
        return (*self.averaged, *self.others)

    @property
    def own(self) -> set[str]:
        """Averaged tasks that belong to no other suite."""
        return {*self.averaged} - {*self.shared}


SUITES = (
    Suite("glue", ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"), others=("wnli",)),
    Suite("superglue", ("boolq", "cb", "copa", "multirc", "rte", "wic", "wsc")),
)


def chosen(names: str) -> tuple[str, ...]:
    """Expand a comma-separated list of tasks and suites to unique task names; unknown names are kept."""
    suites = {suite.name: suite.tasks for suite in SUITES}
    groups = (suites.get(name, (name,)) for name in names.split(",") if name)
    return tuple(dict.fromkeys(name for group in groups for name in group))
