"""All tasks by name, and the suites they belong to: GLUE, SNLI, AllNLI and SuperGLUE. Imports no torch.

Sizes describe the published splits: scores on files of other sizes are not comparable.

`starts_from` follows NeoBERT's published fine-tuning code: MNLI starts from SNLI; QNLI, RTE, MRPC and STS-B
from MNLI; WNLI from AllNLI.
"""

from __future__ import annotations

from dataclasses import dataclass

from neobert.evaluation.glue import superglue
from neobert.evaluation.glue.task import FIRST, SECOND, GlueTask

BINARY_ENTAILMENT = ("entailment", "not_entailment")
ENTAILMENT = ("entailment", "neutral", "contradiction")

GLUE = (
    GlueTask(
        name="cola", folders=("cola",), text=("sentence", "text"),
        headless=("source", "label", "note", "sentence"),
        labels=("unacceptable", "acceptable"), metrics=("mcc",), train_rows=8_551, dev_rows=1_043, epochs=10,
    ),
    GlueTask(
        name="sst2", folders=("sst-2", "sst2"), text=("sentence", "text"), labels=("negative", "positive"),
        metrics=("accuracy",), train_rows=67_349, dev_rows=872, epochs=3,
    ),
    GlueTask(
        name="mrpc", folders=("mrpc",), text=("#1 String", *FIRST), pair=("#2 String", *SECOND),
        label=("Quality", "label"), labels=("not_equivalent", "equivalent"), metrics=("f1", "accuracy"),
        train_rows=3_668, dev_rows=408, epochs=10, starts_from="mnli",
    ),
    GlueTask(
        name="stsb", folders=("sts-b", "stsb"), text=FIRST, pair=SECOND, label=("score", "label"),
        metrics=("spearman", "pearson"), train_rows=5_749, dev_rows=1_500, epochs=10, starts_from="mnli",
    ),
    GlueTask(
        name="qqp", folders=("qqp",), text=("question1", *FIRST), pair=("question2", *SECOND),
        label=("is_duplicate", "label"), labels=("not_duplicate", "duplicate"), metrics=("f1", "accuracy"),
        train_rows=363_846, dev_rows=40_430, epochs=3,
    ),
    GlueTask(
        name="mnli", folders=("mnli", "multinli"), text=FIRST, pair=SECOND, label=("gold_label", "label"),
        labels=ENTAILMENT, metrics=("accuracy",), train_rows=392_702, dev_rows=9_815, epochs=3,
        starts_from="snli",
    ),
    GlueTask(
        name="qnli", folders=("qnli",), text=("question", *FIRST), pair=("sentence", *SECOND),
        labels=BINARY_ENTAILMENT, metrics=("accuracy",), train_rows=104_743, dev_rows=5_463, epochs=3,
        starts_from="mnli", max_length=256,
    ),
    GlueTask(
        name="rte", folders=("rte",), text=FIRST, pair=SECOND, labels=BINARY_ENTAILMENT,
        metrics=("accuracy",), train_rows=2_490, dev_rows=277, epochs=10, starts_from="mnli", max_length=256,
    ),
    GlueTask(
        name="wnli", folders=("wnli",), text=FIRST, pair=SECOND, labels=("not_entailment", "entailment"),
        metrics=("accuracy",), train_rows=635, dev_rows=71, epochs=10, starts_from="allnli",
    ),
    GlueTask(
        name="snli", folders=("snli",), text=FIRST, pair=SECOND, label=("gold_label", "label"),
        headless=("premise", "hypothesis", "label"), labels=ENTAILMENT, metrics=("accuracy",),
        train_rows=549_367, dev_rows=9_842, epochs=3,
    ),
    GlueTask(
        name="allnli", folders=("allnli", "all-nli", "pair-class"), parts=("snli", "mnli"),
        text=FIRST, pair=SECOND, labels=ENTAILMENT, metrics=("accuracy",),
        train_rows=942_069, dev_rows=19_657, epochs=3,
    ),
)  # fmt: skip

LEFT_OUT = {"record": "it chooses among the entities of a passage, and runs here classify single texts"}
"""Tasks of the suites that are not evaluated, and the reason."""

TASKS = {task.name: task for task in (*GLUE, *superglue.TASKS)}


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
        """Tasks of the suite: averaged ones first, then the others."""
        return (*self.averaged, *self.others)

    @property
    def own_tasks(self) -> set[str]:
        """Averaged tasks that belong to no other suite."""
        return {*self.averaged} - {*self.shared}


SUITES = (
    Suite("glue", ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"), others=("wnli",)),
    Suite("superglue", ("boolq", "cb", "copa", "multirc", "rte", "wic", "wsc")),
)


def expand_task_names(names: str) -> tuple[str, ...]:
    """Expand a comma-separated list of tasks and suites to unique task names; unknown names are kept."""
    suites = {suite.name: suite.tasks for suite in SUITES}
    groups = (suites.get(name, (name,)) for name in names.split(",") if name)
    return tuple(dict.fromkeys(name for group in groups for name in group))
