"""Hard-negative mining for a table of pairs; each output row has a query, document and negatives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from neobert.atomic_write import describe_write_error, open_replacement
from neobert.encoding import Encoder
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.mining.negatives import choose_negatives
from neobert.mining.pairs import Pairs, read_pairs
from neobert.mining.request import Request
from neobert.progress import Progress


def run(request: Request) -> dict[str, Any]:
    """Write the pairs with their negatives; return the counts. Raises `ProjectError` for an unusable file."""
    pairs = read_pairs(request)
    encoder = Encoder.load(request.folder, normalize=True, device=request.device, dtype=request.dtype)
    documents = pairs.documents.texts
    progress = Progress("encoding", "texts", len(documents) + len(pairs.answers))
    prompts = encoder.prompts
    found = choose_negatives(
        encoder.encode(pairs.queries.texts, progress.advance, prompt=prompts.query_prompt),
        encoder.encode(documents, progress.advance, prompt=prompts.document_prompt),
        pairs.answers,
        pairs.excluded_documents(),
        request.negatives,
        request.max_share,
        encoder.model.device,
    )
    rows = list(_mined_rows(pairs, found.rows, request.negatives))
    _write_rows(Path(request.output), rows)
    return {
        "output": request.output,
        "rows": pairs.num_rows,
        "rows_without_a_text": pairs.num_empty,
        "copies_removed": pairs.num_copies,
        "queries": len(pairs.answers),
        "documents": len(documents),
        "pairs": len(rows),
        "negatives": sum(map(len, found.rows)),
        "passed_over_as_likely_answers": found.num_too_close,
        "queries_with_too_few": sum(len(each) < request.negatives for each in found.rows),
        "truncated": encoder.counts.truncated,
    }


def _mined_rows(
    pairs: Pairs, negatives: list[list[int]], num_negatives: int
) -> Iterator[dict[str, str | None]]:
    """Yield a row for each query and answer; the columns of missing negatives are null."""
    names = (
        ["negative"]
        if num_negatives == 1
        else [f"negative_{number}" for number in range(1, num_negatives + 1)]
    )
    texts = pairs.documents.texts
    for query, answers, rows in zip(pairs.queries.texts, pairs.answers, negatives, strict=True):
        found = dict(zip_longest(names, (texts[row] for row in rows)))
        for answer in answers:
            yield {"query": query, "positive": texts[answer], **found}


def _write_rows(path: Path, rows: list[dict[str, str | None]]) -> None:
    try:
        with open_replacement(path) as file:
            file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
    except OSError as error:
        hint = "choose another --output"
        raise ProjectError(
            "mine-write", describe_write_error(error), hint, str(path), EXIT_TRAINING_FAILED
        ) from error
