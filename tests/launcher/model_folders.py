"""Folders of transformers models, without torch: settings, a tokenizer, and headers of weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.config import from_dict
from neobert.families.hf.architecture import head_parts
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.hf.initial_weights import expected_weights
from neobert.families.hf.spec import model_section, read_model_settings
from neobert.families.table import model_shape

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(123)))
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "vocab_size": len(WORDS),
}


def write_tokenizer(folder: Path) -> None:
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    content = {
        "added_tokens": [{"id": at, "content": WORDS[at], "special": True} for at in range(5)],
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def write_header(file: Path, shapes: Mapping[str, Any]) -> None:
    form = {"dtype": "F32", "data_offsets": [0, 0]}
    content = {name: {**form, "shape": list(shape)} for name, shape in shapes.items()}
    encoded = json.dumps(content).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded)


def write_model(folder: Path, model_type: str = "bert", **settings: Any) -> Path:
    """Write a model whose weights are those that are compared before a run."""
    folder.mkdir(parents=True)
    names = ARCHITECTURES[model_type].names if model_type in ARCHITECTURES else {}
    sizes = {names.get(name, name): value for name, value in SIZES.items()}
    values = {"model_type": model_type, **sizes, **settings}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    write_tokenizer(folder)
    write_header(folder / "model.safetensors", {})
    if model_type in ARCHITECTURES:
        config = from_dict({"model": {"type": "hf", "config": str(folder)}})
        read, architecture = read_model_settings(model_section(config))
        shapes = dict(expected_weights(model_shape(config, len(WORDS)), architecture, read))
        weights = {f"{architecture.prefix}{name}": size for name, size in shapes.items()}
        heads = head_parts(architecture.prefix, next(iter(architecture.heads.values())))
        write_header(folder / "model.safetensors", weights | {f"{name}.weight": (1,) for name in heads})
    return folder
