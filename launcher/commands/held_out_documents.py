"""Keys that hold out documents of a text for the evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator

from launcher.commands.run_file_entries import Entry

FEW_DOCUMENTS, HELD_OUT = 100, 0.05
"""Number of documents below which the profile's share would hold out none in 1 of 160 texts, and the share
of fewer documents that is held out instead."""
HOLDING_OUT = ("dataset.validation_split", "dataset.eval_samples")


def held_out_keys(documents: int | None, *, is_by_line: bool) -> Iterator[Entry]:
    """Yield document_per_line if `is_by_line`, and the keys that hold out documents for the evaluation.

    The profile's share is kept if the number of documents is large or unknown. Below `FEW_DOCUMENTS`, a fixed
    number is held out, because a share chosen by hash could be none or all; of a single document, none is.
    """
    if is_by_line:
        yield Entry("dataset.document_per_line", True, "no blank line separates documents")
    if documents == 1:
        yield Entry("dataset.validation_split", None, "the text is one document: none is held out")
    elif documents is not None and documents < FEW_DOCUMENTS:
        held_out = math.ceil(documents * HELD_OUT)
        yield Entry("dataset.eval_samples", held_out, f"of {documents} documents, for the evaluation")
