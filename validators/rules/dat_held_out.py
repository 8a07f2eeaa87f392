"""DAT, what a run is evaluated on: whether there is any text for it, and whether it was held out."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, rehearsal_of
from validators.rule import Violations, rule
from validators.rules.dat_prepared import prepared_of

MOST_SHARED = 0.05
"""Of the evaluation's tokens: web text repeats licences and boilerplate word for word."""


@rule("DAT006", "evaluation-not-held-out", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def evaluation_not_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation that the run trains on, or that first fails hours into the run.

    ## What it does
    Evaluates once before the first step, and compares the evaluation's documents with the training text,
    word for word: up to 200,000 of each, spread over a large text, or the first window of a stream. More
    than 5 % of the evaluation's tokens in documents that are trained on is no held-out text.

    ## Why is this bad?
    A loss on text that was trained on falls all the way to zero and says nothing. An evaluation that is run
    for the first time at step 1,000 takes the run down there.

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
    found = rehearsal_of(facts)
    evaluation = measured(found.evaluation, facts, "the evaluation")
    if not evaluation.is_configured:
        return
    if not evaluation.was_announced or evaluation.loss is None:
        message = "the evaluation before the first step gave no loss"
        yield Violation(
            "dataset",
            message,
            "raise dataset.validation_split, or name a split with more text in dataset.eval_split",
        )
    overlap = measured(found.overlap, facts, "the overlap of training and evaluation text")
    if overlap.shared_share > MOST_SHARED:
        yield Violation(
            "dataset",
            f"{overlap.shared_share:.1%} of the evaluation's tokens stand in the training text word for word "
            f"({overlap.eval_documents:,} documents against {overlap.train_documents:,})",
            "hold text out: set dataset.validation_split, or dataset.eval_split to a split of its own",
        )


@rule("DAT017", "nothing-held-out", severity=Severity.WARN, level=Level.DATA, needs=("inspection",))
def nothing_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that is never evaluated, for want of text.

    ## What it does
    Looks at the text as it was prepared. Warns where it has no split to evaluate on and none of it was held
    out: `trainer.eval_steps` then does nothing. With `trainer.metric_for_best_model` such a text is refused.

    ## Why is this bad?
    The loss of the training text alone does not tell learning from learning by heart, and nobody can say
    later which checkpoint was good.

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
        message = "nothing is evaluated: the text has no split for it, and none of it is held out"
        yield Violation("dataset", message, "set dataset.validation_split, such as 0.01")
