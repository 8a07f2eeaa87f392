"""Writer of a sentence-transformers folder: the folder of format `hf`, with a pooling module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neobert.export.card import embedder_card
from neobert.export.embedding_files import EmbeddingFiles
from neobert.export.folder import write_hf_folder
from neobert.export.formats.writer import Writer, outputs
from neobert.export.source import Source

SCORES_TEXTS = "ForSequenceClassification"


def refusal(source: Source) -> str:
    """Return the reason for which the model has no such export (classifier, no pooling), or empty text."""
    if not source.is_neobert:
        return f"{type(source.model).__name__} does not define a pooling"
    if source.is_classifier:
        use = " for CrossEncoder" if type(source.model).__name__.endswith(SCORES_TEXTS) else ""
        return f"the checkpoint is a classifier, not an embedding model: pass --to hf{use}"
    return ""


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the transformers folder of the encoder, and the sentence-transformers files next to it.

    Returns entries for conversion.json.
    """
    write_hf_folder(source.model, source.tokenizer_files, folder)
    (folder / "README.md").write_text(embedder_card(source.model), encoding="utf-8")
    files_of(source).write(folder)
    return {"pooling": source.model.config.pooling}


def files_of(source: Source) -> EmbeddingFiles:
    """Return how the model's `config.pooling` makes embeddings."""
    settings = source.model.config
    return EmbeddingFiles(settings.pooling, settings.hidden_size, source.tokenizer.model_max_length)


WRITER = Writer(write, "sentence_transformers_folder", outputs("pooled"), refusal)
