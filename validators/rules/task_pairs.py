"""Rules of pairs: number of pairs in a step, shared texts, scores, and masked words next to them."""

from __future__ import annotations

import math
from operator import attrgetter

from neobert.plan import Plan
from neobert.plurals import percent
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import CannotTellError, Violations, data_rule, rule
from validators.rules.data_prepared import require_prepared
from validators.tasks import compares_pairs

TINY = 1e-9
FEWEST_PAIRS, AT_TEMPERATURE = 16, 0.05
"""A model that knows nothing ranks one query in 16 right, with a loss of ln 16 = 2.8. With fewer there is
little to learn: a hundred steps of 16 make as many comparisons as one of 160. Negatives within one
temperature of the hardest have at least 1/e of its weight: their number grows with pairs x temperature."""
FEW_SHARED, MANY_SHARED = 0.01, 0.1
"""Minimum shares for a violation: of the evaluation, as for whole copies (DAT022), and of training pairs."""
MAX_FALSE = 0.1
"""Share of a step's documents that are also masked; the batch is smaller by this share."""
MAX_WEIGHT = 10.0
"""Maximum weight of the masked-LM loss; the page of TSK017 has the measurements."""


def require_pair_counts(facts: Facts) -> dict[str, float]:
    """Return the counts of pairs. Raises CannotTellError for facts of a version that did not count them."""
    counts = require_prepared(facts).pairs
    if not counts:
        raise CannotTellError("the pairs of a step were not counted")
    return counts


@data_rule("TSK012", "few-pairs", severity=Severity.WARN, tasks=compares_pairs)
def few_pairs(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Steps with too few pairs to learn from.

    ## What it does
    Counts the pairs of the first steps, over all microbatches and ranks. Warns below 16, and below 0.8 /
    temperature: 40 pairs at 0.02, and 80 at 0.01.

    ## Why is this bad?
    The other documents of a step are the negatives of a query. With few of them the loss is low from the
    start and the gradient depends on a handful of texts, the more so the lower the temperature: the softmax
    gives a negative the weight exp(similarity / temperature), so the negatives that count are within about
    one temperature of the hardest, and their number is proportional to pairs x temperature. The limit is 16
    pairs at the usual 0.05. E5 has 32,768 pairs at 0.01 (arXiv:2212.03533).

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
    pairs, temperature = require_pair_counts(facts)["per_step"], spec_of(run.config).temperature(run.config)
    fewest = max(FEWEST_PAIRS, math.ceil(FEWEST_PAIRS * AT_TEMPERATURE / temperature - TINY))
    if pairs < fewest:
        yield Violation(
            "trainer.gradient_accumulation_steps",
            f"a step compares {pairs:.1f} pairs (at least {fewest} at temperature {temperature:g})",
            "raise trainer.gradient_accumulation_steps, which takes no memory, or "
            "trainer.per_device_train_batch_size",
        )


@data_rule("TSK013", "pairs-of-the-same-texts", severity=Severity.WARN, tasks=compares_pairs)
def pairs_of_the_same_texts(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Pairs of a step that share a query or a document.

    ## What it does
    Compares the texts of the pairs of the first steps. Warns if more than 10 % of the other pairs of a step
    have the query or the document of a pair.

    ## Why is this bad?
    They are not negatives of each other, and are masked, so the batch is smaller than it seems. A text that
    is the answer of many queries is also trained on many times. Without masks, as in most trainers, the model
    is taught that right answers are wrong.

    ## Example
    ```text
    false_share: 0.93    # questions on the paragraph that answers them, in the order of the paragraphs
    ```

    ## Use instead
    ```text
    false_share: 0.01    # a question for each paragraph, or more paragraphs
    ```
    """
    share = require_pair_counts(facts)["false_share"]
    if share > MAX_FALSE:
        yield Violation(
            "dataset.path",
            f"{percent(share)} of the in-batch negatives of a pair have its query or its document "
            f"(at most {percent(MAX_FALSE)})",
            "remove repeated pairs from the data, or add pairs with other documents",
        )


@data_rule("TSK015", "texts-of-pairs-elsewhere", severity=Severity.WARN, tasks=compares_pairs)
def texts_of_pairs_elsewhere(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Queries or documents of one pair that are also in the evaluation, or in another source.

    ## What it does
    Compares the texts of pairs one by one, ignoring case and whitespace. Warns if 1 % of the evaluation
    pairs have a query or a document of the training pairs, and if 10 % of the training pairs of several
    sources have one of another source, of the first million pairs of each. Whole pairs are DAT022. Does not
    apply to text that was prepared in parts.

    ## Why is this bad?
    A document that was trained on is found more easily, whatever the query: the evaluation measures memory.
    A share by hash of pairs leaves the questions on one paragraph in both splits. Texts of several sources
    are trained on more often than their weights say.

    ## Example
    ```text
    eval_shared: 0.42    # a share of the pairs of questions on the same paragraphs
    ```

    ## Use instead
    ```text
    eval_shared: 0.0     # dataset.eval_split, with the pairs of other paragraphs
    ```
    """
    counts = require_pair_counts(facts)
    if (share := counts.get("eval_shared")) and share >= FEW_SHARED:
        yield Violation(
            "dataset.path",
            f"{percent(share)} of the evaluation pairs share a query or a document with the training pairs "
            f"(limit {FEW_SHARED:.0%})",
            "hold out all pairs of a text in a separate file, or compare such runs only with each other",
        )
    if (share := counts.get("source_shared")) and share >= MANY_SHARED:
        yield Violation(
            "dataset.mixture",
            f"{percent(share)} of the training pairs share a query or a document with another source "
            f"(limit {MANY_SHARED:.0%})",
            "remove the pairs from one of the sources, or lower its weight",
        )


def why_no_mix(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about an added masked-LM loss do not apply; empty if one is added."""
    return "" if spec_of(run.config).mix_key else "no masked-LM loss is added"


@rule(
    "TSK017",
    "masked-words-outweigh-pairs",
    severity=Severity.WARN,
    level=Level.STATIC,
    tasks=compares_pairs,
    inapplicable=why_no_mix,
)
def masked_words_outweigh_pairs(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A masked-LM loss of such weight that the pairs are hardly trained on.

    ## What it does
    Warns if `contrastive.masked_lm_weight` is 10 or more.

    ## Why is this bad?
    Both losses are means of a few nats. With a weight of 10, 150 steps of SNLI raised the mean reciprocal
    rank of a small pretrained encoder from 0.08 to 0.13; with 1 to 0.23, with 0.1 to 0.26, without to 0.27.

    ## Example
    ```yaml
    contrastive:
      masked_lm_weight: 10
    ```

    ## Use instead
    ```yaml
    contrastive:
      masked_lm_weight: 0.1
    ```
    """
    key = spec_of(run.config).mix_key
    weight = attrgetter(key)(run.config)
    if weight >= MAX_WEIGHT:
        message = f"{key} is {weight:g} (below {MAX_WEIGHT:g}): the pairs are hardly trained on"
        yield Violation(key, message, f"set {key} to 0.1")
