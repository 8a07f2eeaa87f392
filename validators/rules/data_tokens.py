"""Data rules: token ids that datatrove wrote."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.config.corpora import TOKENIZER_OF_THE_IDS
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rule import Violations, data_rule
from validators.rules.data_prepared import prepared_of

MIN_RETURNED, MAX_MARKED = 0.99, 0.01
"""Shares of the documents. A text may spell a marker, and a document may hold bytes that are not text."""


@data_rule("DAT040", "foreign-token-ids", severity=Severity.FAIL)
def foreign_token_ids(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Token ids of datatrove that the run's tokenizer did not make, or whose documents are not whole.

    ## What it does
    Decodes 1,000 documents of the `.ds` files of `dataset.path` and tokenizes them again: 99 % of them must
    have the same ids. Fails too if more than 1 % of them have a marker such as `[SEP]` inside, apart from
    those at the beginning and at the end, which preparation replaces by its own.

    ## Why is this bad?
    The files name the path of their tokenizer, not its content. With another one of the same size every id
    denotes another token, and the loss still falls. Markers inside are documents that were joined.

    ## Example
    ```text
    31 of 1,000 documents have the same ids after decoding and tokenizing
    ```

    ## Use instead
    ```yaml
    tokenizer:
      path: models/base        # the tokenizer that the .ds files were written with
    ```
    """
    yield from foreign_ids(prepared_of(facts).token_ids)


def foreign_ids(counts: Mapping[str, int]) -> Violations:
    """Judge the counts of documents of token ids, which are empty for text."""
    if not counts:
        return
    total, returned, marked = counts["documents"], counts["returned"], counts["marked"]
    if returned < MIN_RETURNED * total:
        message = f"{returned:,} of {total:,} documents have the same ids after decoding and tokenizing"
        yield Violation("tokenizer", message, TOKENIZER_OF_THE_IDS)
    elif marked > MAX_MARKED * total:
        message = f"{marked:,} of {total:,} documents have markers of the tokenizer inside"
        hint = "set dataset.path to .ds files that were written without shuffle_chunk_size"
        yield Violation("dataset.path", message, hint)
