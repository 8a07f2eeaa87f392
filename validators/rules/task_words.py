"""Task rules: labels of words."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rule import Violations, data_rule
from validators.rules.data_prepared import prepared_of
from validators.tasks import of_words


@data_rule("DAT024", "word-labels-lost", severity=Severity.WARN, tasks=of_words)
def word_labels_lost(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Labelled words that are neither trained on nor scored.

    ## What it does
    Counts the words of the prepared data without a token, and those that truncation or dropping cuts off.

    ## Why is this bad?
    A word without a token has no prediction: zero-width characters and control characters vanish in most
    tokenizers. Entities that are cut off are missing from the evaluation, so its F1 ignores them.

    ## Example
    ```yaml
    dataset:
      max_seq_length: 32
      long_documents: truncate
    ```

    ## Use instead
    ```yaml
    dataset:
      max_seq_length: 32
      long_documents: split       # between words; every word keeps its label
    ```
    """
    prepared = prepared_of(facts)
    for split, words in (("training", prepared.words), ("evaluation", prepared.eval_words)):
        if words:
            yield from _lost(run, split, words)


def _lost(run: ResolvedRun, split: str, words: Mapping[str, int]) -> Violations:
    total, without_token, cut = words["total"], words["without_token"], words["cut"]
    if without_token:
        yield Violation(
            "tokenizer",
            f"{without_token:,} of {total:,} {split} words have no token, so their labels are not used",
            "remove words without visible characters from the data",
        )
    is_cut, longer = run.config.dataset.long_documents != "split", "raise dataset.max_seq_length"
    if cut:
        yield Violation(
            "dataset.long_documents",
            f"{cut:,} of {total:,} {split} words are cut off, so their labels are not used",
            f"set dataset.long_documents to split, or {longer}" if is_cut else longer,
        )
