"""Writer of a transformers folder: weights in fp32 or bf16, config, modeling code, tokenizer, model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neobert.export.folder import write_hf_folder
from neobert.export.formats.writer import ROWS, Writer, outputs
from neobert.export.source import Source


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the files of a checkpoint without the trainer state."""
    write_hf_folder(source.model, source.tokenizer_files, folder, dtype=source.dtype)
    if source.is_embedder and source.embedding is not None:
        source.embedding.write(folder)
    return {}


WRITER = Writer(write, "transformers_folder", outputs(*ROWS, "last_hidden_state", "logits"))
