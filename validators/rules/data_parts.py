"""Data rules: prepared parts of a text that are to be joined."""

from __future__ import annotations

from pathlib import Path

from neobert.plan import Plan
from neobert.plurals import counted
from neobert.runfiles.part_faults import (
    ONE_RUN_FILE,
    UNFINISHED,
    describe_missing_parts,
    join_command,
    missing_parts_hint,
)
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, require_group, rule


@rule(UNFINISHED, "unfinished-parts", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def _unfinished_parts(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Parts of prepared data that are missing, not joined, or do not belong together.

    ## What it does
    Looks for the folders of `data prepare --part K/N` in the folder of prepared data. Fails if a part is
    missing, was interrupted, or if the parts were not joined. Compares their manifests, as `data join` does:
    the settings and the tokenizer that each was prepared with, and the blocks of the text (files, or row
    groups of Parquet files), each of which must be in one part.

    ## Why is this bad?
    Without the join, the run has no prepared data, and would tokenize the whole text again, on one machine.
    Parts of different texts would train a model on two tokenizers, on repeated documents, or on holes.

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
    data = require_group(facts.data)
    for fault in data.part_faults:
        yield Violation("dataset.cache_dir", fault, ONE_RUN_FILE)
    if not data.unjoined_parts or data.part_faults:
        return
    folder = run.config.dataset.cache_dir or "DIR"
    if data.missing_parts:
        message = f"{folder}: {describe_missing_parts(data.missing_parts)}"
        yield Violation("dataset.cache_dir", message, missing_parts_hint(data.missing_parts, Path(folder)))
    else:
        message = (
            f"{folder} contains {counted(data.unjoined_parts, 'part')} of prepared data that are not joined"
        )
        yield Violation("dataset.cache_dir", message, f"run {join_command(Path(folder))}")
