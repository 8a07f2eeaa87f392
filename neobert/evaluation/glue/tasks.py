"""The tasks of GLUE, and SNLI. Light: no torch.

Sizes are those of the published splits: scores on files of other sizes are not comparable.
"""

from __future__ import annotations

from dataclasses import dataclass

BINARY_ENTAILMENT = ("entailment", "not_entailment")
ENTAILMENT = ("entailment", "neutral", "contradiction")
FIRST = ("sentence1", "premise", "text_a", "text", "anchor")
SECOND = ("sentence2", "hypothesis", "text_b", "text_pair")
SAME_SIZE = 0.002
"""Relative difference up to which two sizes are the same: mirrors drop a few malformed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """A task with labelled texts or pairs.

    Attributes:
        folders: names of its folder in a copy of the data, in lower case.
        text, pair, label: names of the columns, in the order of preference; no pair: single texts.
        headless: columns of a file without a header line.
        labels: names of the classes in the order of their numbers; empty: scores.
        metrics: of the evaluation, as the task's runs report them; their mean is the task's score, the first
            one selects the best checkpoint.
        train_rows, dev_rows: sizes of the published splits.
        starts_from: task whose best checkpoint a transferred run starts from.
        max_length: longest text or pair in tokens.
    """

    name: str
    folders: tuple[str, ...]
    text: tuple[str, ...]
    pair: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    headless: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...]
    train_rows: int
    dev_rows: int
    epochs: int
    starts_from: str | None = None
    max_length: int = 128

    @property
    def is_regression(self) -> bool:
        """Return whether labels are scores."""
        return not self.labels


_TASKS = (
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
    ),
    GlueTask(
        name="qnli", folders=("qnli",), text=("question", *FIRST), pair=("sentence", *SECOND),
        labels=BINARY_ENTAILMENT, metrics=("accuracy",), train_rows=104_743, dev_rows=5_463, epochs=3,
        max_length=256,
    ),
    GlueTask(
        name="rte", folders=("rte",), text=FIRST, pair=SECOND, labels=BINARY_ENTAILMENT,
        metrics=("accuracy",), train_rows=2_490, dev_rows=277, epochs=10, starts_from="mnli", max_length=256,
    ),
    GlueTask(
        name="wnli", folders=("wnli",), text=FIRST, pair=SECOND, labels=("not_entailment", "entailment"),
        metrics=("accuracy",), train_rows=635, dev_rows=71, epochs=10,
    ),
    GlueTask(
        name="snli", folders=("snli",), text=FIRST, pair=SECOND, label=("gold_label", "label"),
        headless=("premise", "hypothesis", "label"), labels=ENTAILMENT, metrics=("accuracy",),
        train_rows=549_367, dev_rows=9_842, epochs=3,
    ),
)  # fmt: skip

TASKS = {task.name: task for task in _TASKS}
GLUE = tuple(name for name in TASKS if name != "snli")


def is_whole(rows: int, published: int) -> bool:
    """Return whether a split has the size of the published one."""
    return abs(rows - published) <= SAME_SIZE * published


def reasons_not_comparable(task: GlueTask, train_rows: int, dev_rows: int) -> list[str]:
    """Return why scores on these files do not compare with published ones."""
    reasons = []
    if not is_whole(train_rows, task.train_rows):
        reasons.append(f"training set of {train_rows:,} texts, the published one has {task.train_rows:,}")
    if not is_whole(dev_rows, task.dev_rows):
        reasons.append(f"development set of {dev_rows:,} texts, the published one has {task.dev_rows:,}")
    return reasons
