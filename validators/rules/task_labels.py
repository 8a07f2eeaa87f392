"""Task rules: settings, classes and copies of labelled texts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap

from neobert.plan import Plan
from neobert.plurals import listed
from neobert.tasks.spec import LabelSpec
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, data_rule, rule
from validators.rules.data_prepared import require_prepared
from validators.tasks import compares_pairs, has_labels, labels_whole_texts, trains_on_conversations

FEW_COPIES, MANY_COPIES = 0.01, 0.1
"""Shares of evaluation texts with a copy in the training data, from which DAT022 warns and fails."""

NARROW_RANGE = 0.01
"""Range of scores below which DAT030 warns: their differences are smaller than the noise of a step."""


def task_labels(run: ResolvedRun) -> LabelSpec:
    """Return the facts about the labels of the run's data. Only for tasks with labelled data."""
    labels = spec_of(run.config).labels
    assert labels is not None, "only rules for tasks with labels call this"
    return labels(run.config)


@rule(
    "TSK001",
    "text-split-from-label",
    severity=Severity.FAIL,
    level=Level.STATIC,
    tasks=lambda task: labels_whole_texts(task) or compares_pairs(task),
)
def text_split_from_label(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Long texts that would be split, although a label or a vector belongs to a whole text.

    ## What it does
    Rejects `dataset.long_documents: split` for labelled texts and for pairs.

    ## Why is this bad?
    The label of a text would be copied to pieces that do not support it, and a piece of a document does not
    answer the query.

    ## Example
    ```yaml
    dataset:
      long_documents: split
    ```

    ## Use instead
    ```yaml
    dataset:
      long_documents: truncate
    ```
    """
    if run.config.dataset.long_documents == "split":
        yield Violation(
            "dataset.long_documents",
            f"long_documents is split, but {_whole_text_result(run)} belongs to a whole text",
            "set dataset.long_documents to truncate, drop or error",
        )


def _whole_text_result(run: ResolvedRun) -> str:
    return "a label" if labels_whole_texts(spec_of(run.config)) else "a vector"


@rule(
    "TSK005",
    "contradictory-labels",
    severity=Severity.FAIL,
    level=Level.STATIC,
    tasks=lambda task: has_labels(task) or trains_on_conversations(task) or compares_pairs(task),
)
def contradictory_labels(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Settings of labels or pairs that contradict each other.

    ## What it does
    Rejects a single class, repeated names, and streaming of labelled data. For labels of texts also a number
    of `label_names` other than `num_labels` if that is set, names for a regression, and a column that is both
    text and label or both texts of a pair. For labels of words also names of which some mark entities (`B-`,
    `I-`, `E-` or `S-` and a type) and others than `O` do not; for conversations streaming, and a
    `template_date` that is not a date. For pairs, columns that are not read, first components that are all,
    and texts that are their own documents in a model without dropout.

    ## Why is this bad?
    The head would have outputs that no label uses, or labels would be refused while the data is prepared. A
    text that is its own label is classified perfectly, by a model that is of no use. Next to a name such as
    `PER`, the tag `B-PER` cannot be counted as the start of an entity, so the run would report no F1.

    ## Example
    ```yaml
    classification:
      label_names: [no, "yes"]
      num_labels: 3
    ```

    ## Use instead
    ```yaml
    classification:
      label_names: [no, "yes"]
    ```
    """
    spec = spec_of(run.config)
    yield from starmap(Violation, spec.contradictions(run.config))
    if run.config.dataset.streaming:
        message = f"task {spec.name} reads prepared data, but dataset.streaming is true"
        yield Violation("dataset.streaming", message, "set dataset.streaming to false")


@data_rule("DAT021", "single-class", severity=Severity.FAIL, tasks=has_labels)
def single_class(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Training labels of a single class, or classes of the evaluation or the head that training lacks.

    ## What it does
    Counts the labels of the prepared training and evaluation data. Warns about classes that training lacks:
    of the evaluation, or of the head (label names, or `classification.num_labels`).

    ## Why is this bad?
    With one class there is nothing to learn, and accuracy is 100 % from the first step. A class that training
    lacks is never predicted, and the mean F1 counts a class of the head that is predicted by chance. Often
    the labels start at 1, or the training data is part of a sorted table.

    ## Example
    ```text
    labels: {"1": 25000}
    ```

    ## Use instead
    ```text
    labels: {"0": 12500, "1": 12500}
    ```
    """
    prepared, labels = require_prepared(facts), task_labels(run)
    if len(prepared.labels) == 1:
        label, count = next(iter(prepared.labels.items()))
        yield Violation(
            labels.column,
            f"all {count:,} training {labels.unit}s have label {label}",
            f"check {labels.column}; if dataset.train_split selects the first rows, shuffle the data",
        )
        return
    if not prepared.labels:
        return
    if unseen := sorted(prepared.eval_labels.keys() - prepared.labels.keys()):
        yield Violation(
            labels.column,
            f"labels {', '.join(unseen)} of the evaluation are absent from the training data",
            "check how the data is split",
            Severity.WARN,
        )
    missing = [each for each in labels.classes if each not in {*prepared.labels, *unseen}]
    if missing:
        yield Violation(
            labels.setting,
            f"no training {labels.unit} has label {listed(missing)}, but the head has {len(labels.classes)} "
            "classes",
            f"set {labels.setting} to the classes of the data, or check how the data is split",
            Severity.WARN,
        )


def why_no_scores(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about scores do not apply; empty for scores of texts or of pairs."""
    spec = spec_of(run.config)
    if spec.labels is None:
        return "" if spec.score_key(run.config) else "the run trains on no scores"
    return "labels are classes, not scores" if task_labels(run).classes else ""


@data_rule(
    "DAT030",
    "nearly-equal-scores",
    severity=Severity.FAIL,
    tasks=lambda task: labels_whole_texts(task) or compares_pairs(task),
    inapplicable=why_no_scores,
)
def nearly_equal_scores(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Scores that are equal or almost equal, or pairs without scores.

    ## What it does
    Fails if all training scores of a regression or of pairs are equal, and if a run trains on scores of pairs
    but no pair has one. Warns if the scores of a regression differ by less than 0.01.

    ## Why is this bad?
    Equal scores teach nothing: no correlation is defined, and the loss of scored pairs is 0. Differences that
    are far below the outputs of a new head are not learned: of scores between -0.0005 and 0.0005 that words
    determine, the rank correlation fell to -0.45 in 188 steps; with the same scores times 3,000 it was 1. A
    new head begins at the mean of the scores.

    ## Example
    ```text
    scores: 0.0912 to 0.0947
    ```

    ## Use instead
    ```text
    scores: -2.6 to 2.6      # (score - 0.093) / 0.0007
    ```
    """
    scores, key = require_prepared(facts).scores, spec_of(run.config).score_key(run.config)
    if key:
        yield from _pair_score_violations(scores, key)
        return
    if not scores:
        return
    column = task_labels(run).column
    if scores["min"] == scores["max"]:
        yield Violation(column, f"all training scores are {scores['min']:g}", f"check {column}")
    elif (width := scores["max"] - scores["min"]) < NARROW_RANGE:
        message = f"the training scores differ by at most {width:.2g} (at least {NARROW_RANGE:g} needed)"
        hint = "divide the scores by their standard deviation, and multiply the predictions by it"
        yield Violation(column, message, hint, Severity.WARN)


def _pair_score_violations(scores: Mapping[str, float], key: str) -> Violations:
    if not scores:
        yield Violation(key, f"{key} is set, but no training pair has a score", f"correct or remove {key}")
    elif scores["min"] == scores["max"]:
        message = f"all scores of the training pairs are {scores['min']:g}"
        yield Violation(key, message, f"set {key} to a column with different scores, or remove {key}")


@data_rule(
    "DAT022",
    "evaluation-in-training",
    severity=Severity.FAIL,
    tasks=lambda task: has_labels(task) or trains_on_conversations(task) or compares_pairs(task),
)
def evaluation_in_training(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Evaluation texts that also occur in the training data.

    ## What it does
    Counts the evaluation texts, or pairs of texts, that are in the training data too, ignoring case and white
    space. Warns from 1 % of the evaluation, fails from 10 %.

    ## Why is this bad?
    The score of a text that was trained on measures memory. Mirrors of public data often overlap: published
    splits share up to 2 % of their texts, and samples of one dataset far more with another.

    ## Example
    ```text
    copies_in_training: 202 of 1,000
    ```

    ## Use instead
    ```text
    copies_in_training: 0 of 1,000
    ```
    """
    prepared = require_prepared(facts)
    copies, total = prepared.eval_copies, prepared.eval_documents
    if total and copies >= FEW_COPIES * total:
        yield Violation(
            "dataset.path",
            f"{copies:,} of {total:,} evaluation texts are in the training data (limit {MANY_COPIES:.0%}, a "
            f"warning from {FEW_COPIES:.0%})",
            "remove these texts from the training data, or evaluate on other data",
            Severity.FAIL if copies >= MANY_COPIES * total else Severity.WARN,
        )
