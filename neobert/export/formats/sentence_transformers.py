"""A folder for sentence-transformers: the folder of `hf` with its pooling as a module.

The files have the names and keys of release 2, which all later releases and text-embeddings-inference read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neobert.export.card import embedder_card
from neobert.export.folder import write_hf_folder
from neobert.export.formats.writer import Writer, outputs
from neobert.export.source import Source

POOLING_FOLDER = "1_Pooling"
MODES = {"cls": "pooling_mode_cls_token", "avg": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": POOLING_FOLDER, "type": "sentence_transformers.models.Pooling"},
]


def refusal(source: Source) -> str:
    """Return why the model cannot be exported: no pooling, or a classifier; empty if it can."""
    if not source.is_neobert:
        return f"{type(source.model).__name__} declares no pooling"
    if source.is_classifier:
        return "the checkpoint is a classifier, not an embedding model: CrossEncoder loads the folder of hf"
    return ""


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the encoder's folder, and the modules around it."""
    write_hf_folder(source.model, source.tokenizer_files, folder)
    (folder / "README.md").write_text(embedder_card(source.model), encoding="utf-8")
    write_json(folder / "modules.json", MODULES)
    longest = {"max_seq_length": source.tokenizer.model_max_length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", longest)
    settings: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", settings)
    write_pooling(source, folder)
    return {"pooling": source.model.config.pooling}


def write_pooling(source: Source, folder: Path) -> None:
    """Write `config.pooling` as a Pooling module."""
    chosen = MODES[source.model.config.pooling]
    (folder / POOLING_FOLDER).mkdir()
    modes = {mode: mode == chosen for mode in MODES.values()}
    width = {"word_embedding_dimension": source.model.config.hidden_size}
    write_json(folder / POOLING_FOLDER / "config.json", width | modes)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


WRITER = Writer(write, "sentence_transformers_folder", outputs("pooled"), refusal)
