"""Data rules of pairs: number of pairs in a step, and pairs that share a text."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.plurals import percent
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rule import CannotTellError, Violations, data_rule
from validators.rules.data_prepared import prepared_of
from validators.tasks import of_pairs

FEWEST_PAIRS = 16
"""A model that knows nothing ranks one query in 16 right, with a loss of ln 16 = 2.8. With fewer there is
little to learn: a hundred steps of 16 make as many comparisons as one of 160."""
MOST_FALSE = 0.1
"""Share of the documents of a step that are masked, which is what its batch is smaller by."""


def counts_of(facts: Facts) -> dict[str, float]:
    """Return the counts of pairs. Raises CannotTellError for facts of a version without them."""
    counts = prepared_of(facts).pairs
    if not counts:
        raise CannotTellError("the pairs of a step were not counted")
    return counts


@data_rule("TSK012", "few-pairs", severity=Severity.WARN, tasks=of_pairs)
def few_pairs(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Steps of so few pairs that there is little to tell apart.

    ## What it does
    Counts the pairs of the first steps, over all microbatches and ranks. Warns below 16.

    ## Why is this bad?
    The other documents of a step are the negatives of a query. With few of them the loss is low from the
    start and the gradient is that of a handful of texts, the more so the lower the temperature.

    ## Example
    ```yaml
    trainer:
      per_device_train_batch_size: 2
      gradient_accumulation_steps: 1
    ```

    ## Use instead
    ```yaml
    trainer:
      per_device_train_batch_size: 2
      gradient_accumulation_steps: 64    # their pairs are negatives of each other, in the memory of one
    ```
    """
    pairs = counts_of(facts)["per_step"]
    if pairs < FEWEST_PAIRS:
        yield Violation(
            "trainer.gradient_accumulation_steps",
            f"a step compares {pairs:.1f} pairs (at least {FEWEST_PAIRS})",
            "raise trainer.gradient_accumulation_steps, which takes no memory, or "
            "trainer.per_device_train_batch_size",
        )


@data_rule("TSK013", "pairs-of-the-same-texts", severity=Severity.WARN, tasks=of_pairs)
def pairs_of_the_same_texts(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Pairs of a step that share a query or a document.

    ## What it does
    Compares the texts of the pairs of the first steps. Warns if more than 10 % of the other pairs of a step
    have the query or the document of a pair.

    ## Why is this bad?
    They are not negatives of each other, and are masked: the batch is that much smaller than it seems. A text
    that is the answer of many queries is also trained on many times. Without masks, as in most trainers, the
    model is taught that right answers are wrong.

    ## Example
    ```text
    false_share: 0.93    # questions on the paragraph that answers them, in the order of the paragraphs
    ```

    ## Use instead
    ```text
    false_share: 0.01    # a question for each paragraph, or more paragraphs
    ```
    """
    share = counts_of(facts)["false_share"]
    if share > MOST_FALSE:
        yield Violation(
            "dataset.path",
            f"{percent(share)} of the other pairs of a step have the query or the document of a pair "
            f"(at most {percent(MOST_FALSE)})",
            "remove repeated pairs from the data, or add pairs with other documents",
        )
