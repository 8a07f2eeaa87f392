"""Writer of a sentence-transformers folder: the folder of format `hf`, with a pooling module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neobert.export.card import embedder_card
from neobert.export.folder import write_hf_folder
from neobert.export.formats.writer import Writer, select_outputs
from neobert.export.source import Source

SCORES_TEXTS = "ForSequenceClassification"


def refusal(source: Source) -> str:
    """Return the reason why the model cannot be exported (its task, or no pooling); empty if it can."""
    if source.is_classifier:
        use = " for CrossEncoder" if type(source.model).__name__.endswith(SCORES_TEXTS) else ""
        return f"the checkpoint is a classifier, not an embedding model: pass --to hf{use}"
    if source.model.can_generate():
        return f"{type(source.model).__name__} generates text and has no embeddings"
    if source.embedding is None:
        return f"{type(source.model).__name__} declares no pooling: pass --pooling avg, cls or max"
    return ""


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the transformers folder of the encoder, and the sentence-transformers files next to it.

    Returns entries for conversion.json.
    """
    assert source.embedding is not None
    write_hf_folder(source.model, source.tokenizer_files, folder)
    card = embedder_card(source.model, source.embedding)
    (folder / "README.md").write_text(card, encoding="utf-8")
    source.embedding.write(folder)
    return {"pooling": source.embedding.pooling}


WRITER = Writer(write, "sentence_transformers_folder", select_outputs("pooled"), refusal)
