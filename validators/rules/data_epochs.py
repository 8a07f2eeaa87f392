"""Data rules: number of times that a run reads its text."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import MAX_EPOCHS, limiting_key, own_part_of
from validators.rule import CannotTellError, Violations, data_rule, rule
from validators.rules.data_prepared import is_short, prepared_of
from validators.tasks import of_text

HARMLESS_EPOCHS, EPOCH_LIMIT = 4.0, 40.0


def _is_not_counted(run: ResolvedRun, plan: Plan) -> str:
    return "the data is a stream of unknown length" if run.config.dataset.streaming else is_short(run, plan)


@data_rule("DAT004", "too-little-text", severity=Severity.FAIL, inapplicable=_is_not_counted)
def too_little_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Too little text for the number of steps, so that it is repeated too often.

    ## What it does
    Divides the tokens that the run reads by those of the prepared training text. Fails above 40 epochs, as
    many as BERT had (Devlin et al., arXiv:1810.04805). In a production run, warns above 4 epochs: up to that
    number, repeated text is worth nearly as much as new text (Muennighoff et al., arXiv:2305.16264). Smoke
    runs are exempt.

    ## Why is this bad?
    The remaining steps memorize the text instead of learning the language.

    ## Example
    ```text
    the run reads the data 131.0 times
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 20000
    ```
    """
    epochs = prepared_of(facts).epochs
    if epochs is None:
        raise CannotTellError("the size of the data is unknown")
    if epochs > EPOCH_LIMIT or (run.is_production and epochs > HARMLESS_EPOCHS):
        yield Violation(
            limiting_key(run, plan),
            f"the run reads the data {epochs:,.1f} times (limit {EPOCH_LIMIT:g}; in production a warning "
            f"above {HARMLESS_EPOCHS:g})",
            _less_often(run, plan, epochs, 0),
            None if epochs > EPOCH_LIMIT else Severity.WARN,
        )


def _is_not_estimated(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why epochs are not estimated from file sizes, or an empty string."""
    if run.config.dataset.mixture:
        return "a mixture is checked by DAT019, on the prepared text"
    if plan.epochs.value is None:
        return "the size of the text is not known before the data is prepared"
    return is_short(run, plan)


@rule(
    "DAT025",
    "text-learned-by-heart",
    tasks=of_text,
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_is_not_estimated,
)
def text_learned_by_heart(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that reads a small text many times, by the size of its files.

    ## What it does
    Divides the tokens that the run reads by those of its training files, estimated at 4 bytes per token, as
    in English; steps of a run that is continued on this text do not count (`trainer.continue_from`). Warns
    above 40 passes, the limit of text that was prepared and counted (DAT004), for which this rule has no
    finding. Compressed files and Parquet files are not checked, because their size differs from that of the
    text.

    ## Why is this bad?
    The loss of a text that is read a hundred times falls until the model has learned it by heart, and looks
    like learning. A run of hours on a text for minutes is better spent on more text.

    ## Example
    ```yaml
    dataset:
      path: notes.txt     # 60 kB: 15,000 tokens
    trainer:
      max_steps: 20000
    ```

    ## Use instead
    ```yaml
    dataset:
      path: notes.txt
    trainer:
      max_steps: 200
    ```
    """
    if plan.epochs.value is None or facts.prepared is not None:
        return
    part = own_part_of(run, plan, facts)
    passes = plan.epochs.value * part.tokens.value / plan.total_tokens.value
    if passes > EPOCH_LIMIT:
        yield Violation(
            limiting_key(run, plan),
            f"the run reads the text about {passes:,.0f} times: {part.tokens.value:,} tokens in "
            f"{counted(part.steps, 'step')} ({plan.epochs.reason})",
            _less_often(run, plan, passes, part.first_step),
        )


def _less_often(run: ResolvedRun, plan: Plan, epochs: float, first_step: int) -> str:
    """Return the hint with which the steps from `first_step` read the text `HARMLESS_EPOCHS` times."""
    key, value = limiting_key(run, plan), f"{HARMLESS_EPOCHS:g}"
    if key != MAX_EPOCHS:
        steps = (plan.max_steps.value - first_step) * HARMLESS_EPOCHS / epochs
        value = str(first_step + max(1, int(steps)))
    return f"add text, or set {key} to {value}, which reads this text {HARMLESS_EPOCHS:g} times"
