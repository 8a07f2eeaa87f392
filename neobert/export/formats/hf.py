"""Writer of a transformers folder: weights in fp32 or bf16, config, modeling code, tokenizer, model card.

For a model with native sparse attention, weights are compared instead of outputs, because
flash-linear-attention runs on GPUs only. That library loads the weights if it is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from neobert.export.folder import cast_floating, write_hf_folder
from neobert.export.formats.writer import ROWS, Writer, select_outputs
from neobert.export.reference import Arrays, Reference
from neobert.export.source import Source
from neobert.export.weights import unique_weights


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the files of a checkpoint without the trainer state; return entries for conversion.json."""
    write_hf_folder(source.model, source.tokenizer_files, folder, dtype=source.dtype)
    if source.is_embedder and source.embedding is not None:
        source.embedding.write(folder)
    return {"not_compared": ["last_hidden_state", "logits"]} if source.has_sparse_attention else {}


def expected_outputs(source: Source, reference: Reference) -> Arrays:
    """Return the outputs that the reader must reproduce; for a sparse model, sums of its weights instead."""
    if not source.has_sparse_attention:
        return select_outputs(*ROWS, "last_hidden_state", "logits")(source, reference)
    weights = unique_weights(source.model)
    totals = [cast_floating(weights[name].detach(), source.dtype).double() for name in sorted(weights)]
    return select_outputs(*ROWS)(source, reference) | {
        "weights": np.array([[each.sum(), each.abs().sum()] for each in totals])
    }


WRITER = Writer(write, "transformers_folder", expected_outputs)
