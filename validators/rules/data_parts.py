"""Data rules: prepared data in parts that are not joined, and its number of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from neobert.config.corpora import TOKENIZER_OF_THE_IDS
from neobert.plan import Plan
from neobert.plurals import counted
from neobert.runfiles.part_faults import (
    DISAGREE,
    ONE_RUN_FILE,
    UNFINISHED,
    finish,
    join_command,
    missing_text,
)
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, data_rule, needed, rule
from validators.rules.data_prepared import prepared_of

MIN_RETURNED, MAX_MARKED = 0.99, 0.01
"""Shares of the documents. A text may spell a marker, and a document may hold bytes that are not text."""


@rule(UNFINISHED, "unfinished-parts", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def unfinished_parts(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Parts of prepared data that are missing or not joined.

    ## What it does
    Looks for the folders of `data prepare --part K/N` in the folder of prepared data. Fails if a part is
    missing, was interrupted, or if the parts were not joined.

    ## Why is this bad?
    Without the join, the run has no prepared data, and would tokenize the whole text again, on one machine.

    ## Example
    ```text
    prepared/: part-1-of-3, part-3-of-3
    ```

    ## Use instead
    ```text
    neobert-launch data prepare run.yaml --part 2/3 --output prepared
    neobert-launch data join prepared
    ```
    """
    data = needed(facts.data)
    if not data.unjoined_parts or data.part_faults:
        return
    folder = run.config.dataset.cache_dir or "DIR"
    if data.missing_parts:
        message = f"{folder}: {missing_text(data.missing_parts)}"
        yield Violation("dataset.cache_dir", message, finish(data.missing_parts, Path(folder)))
    else:
        message = f"{folder} holds {counted(data.unjoined_parts, 'part')} of a text, not joined"
        yield Violation("dataset.cache_dir", message, f"run {join_command(Path(folder))}")


@rule(DISAGREE, "parts-disagree", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def parts_disagree(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Parts of prepared data that are not parts of one text.

    ## What it does
    Compares the manifests of the parts in the folder of prepared data before they are joined, as `data join`
    does: the settings and the tokenizer that each was prepared with, and the blocks of the text (files, or
    row groups of Parquet files), each of which must be in one part.

    ## Why is this bad?
    Joined, they would train a model on two tokenizers, on documents that are repeated, or on a text with
    holes.

    ## Example
    ```text
    part-2-of-3 differs from part-1-of-3 in max_length
    ```

    ## Use instead
    ```text
    prepare all parts with one run file, into a new folder
    ```
    """
    for fault in needed(facts.data).part_faults:
        yield Violation("dataset.cache_dir", fault, ONE_RUN_FILE)


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
