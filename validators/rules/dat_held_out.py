"""DAT: existence of evaluation text, and its overlap with the training text."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import NEEDS, measured, rehearsal_of
from validators.rule import Violations, rule
from validators.rules.dat_prepared import prepared_of

MOST_SHARED = 0.05
"""Share of the evaluation's tokens: web text repeats licences and boilerplate verbatim."""


@rule("DAT006", "evaluation-not-held-out", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def evaluation_not_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation on training data, or one that fails for the first time hours into the run.

    ## What it does
    Evaluates once before step 1, and compares the evaluation documents with the training text verbatim: up to
    200,000 of each, spread over a large corpus, or the first window of a stream. Fails if more than 5 % of
    the evaluation's tokens are in documents that are also trained on.

    ## Why is this bad?
    A loss on training text falls towards zero and says nothing about generalization. An evaluation that first
    runs at step 1,000 stops the run there if it fails.

    ## Example
    ```yaml
    dataset:
      train_split: train
      eval_split: train[:1%]
    ```

    ## Use instead
    ```yaml
    dataset:
      train_split: train
      validation_split: 0.01
    ```
    """
    rehearsal = rehearsal_of(facts)
    evaluation = measured(rehearsal.evaluation, facts, "the evaluation")
    if not evaluation.is_configured:
        return
    if not evaluation.was_announced or evaluation.loss is None:
        message = "the evaluation before step 1 produced no loss"
        yield Violation(
            "dataset",
            message,
            "raise dataset.validation_split, or set dataset.eval_split to a split with more text",
        )
    overlap = measured(rehearsal.overlap, facts, "the overlap of training and evaluation text")
    if overlap.shared_share > MOST_SHARED:
        yield Violation(
            "dataset",
            f"{overlap.shared_share:.1%} of the evaluation's tokens also occur in training documents "
            f"({overlap.eval_documents:,} documents compared with {overlap.train_documents:,})",
            "set dataset.validation_split, or dataset.eval_split to a separate split",
        )


@rule("DAT017", "nothing-held-out", severity=Severity.WARN, level=Level.DATA, needs=("inspection",))
def nothing_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that is never evaluated, because no text is held out.

    ## What it does
    Warns if the prepared data has no evaluation split and none of it is held out: `trainer.eval_steps` then
    has no effect. With `trainer.metric_for_best_model` such data is rejected during preparation.

    ## Why is this bad?
    The training loss alone cannot distinguish learning from memorization, and later nobody can tell which
    checkpoint was good.

    ## Example
    ```yaml
    dataset:
      path: corpus.jsonl
    ```

    ## Use instead
    ```yaml
    dataset:
      path: corpus.jsonl
      validation_split: 0.01
    ```
    """
    if prepared_of(facts).num_eval_tokens is None:
        message = "no evaluation: the data has no evaluation split and none of it is held out"
        yield Violation("dataset", message, "set dataset.validation_split, e.g. to 0.01")
