"""Writer of a sentence-transformers folder: the folder of format `hf`, with a pooling module.

File names and keys are those of release 2, which later releases and text-embeddings-inference also read.
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
SCORES_TEXTS = "ForSequenceClassification"
MODES = {"cls": "pooling_mode_cls_token", "avg": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": POOLING_FOLDER, "type": "sentence_transformers.models.Pooling"},
]


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
    write_json(folder / "modules.json", MODULES)
    longest = {"max_seq_length": source.tokenizer.model_max_length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", longest)
    settings: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", settings)
    write_pooling(source, folder)
    return {"pooling": source.model.config.pooling}


def write_pooling(source: Source, folder: Path) -> None:
    """Write `config.pooling` as the config of a Pooling module, to 1_Pooling/config.json."""
    chosen = MODES[source.model.config.pooling]
    (folder / POOLING_FOLDER).mkdir()
    modes = {mode: mode == chosen for mode in MODES.values()}
    width = {"word_embedding_dimension": source.model.config.hidden_size}
    write_json(folder / POOLING_FOLDER / "config.json", width | modes)


def write_json(path: Path, content: Any) -> None:
    """Write content as indented JSON in UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


WRITER = Writer(write, "sentence_transformers_folder", outputs("pooled"), refusal)
