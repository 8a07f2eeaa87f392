"""Weights in the layout of the published model's best-known fork.

This layout has separate gate and up matrices, and a decoder that is a copy of the embedding. config.json has
the keys that the fork reads. The fork's modeling code is not included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from neobert.errors import ProjectError
from neobert.export.embedding_files import write_json
from neobert.export.formats.writer import ROWS, Writer, describe_setting_differences, select_outputs
from neobert.export.layouts import DECODER, EMBEDDING, hub_to_fork
from neobert.export.lazy_weights import METADATA
from neobert.export.source import Source
from neobert.export.weights import unique_weights
from neobert.model.configuration_neobert import DEFAULT_ROPE_THETA
from neobert.runfiles.weights_header import WEIGHTS

KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "embedding_init_range", "decoder_init_range", "norm_eps", "rms_norm", "rope",
    "hidden_act", "pad_token_id",
)  # fmt: skip
CLASSES = {
    "AutoConfig": "modeling_neobert.NeoBERTConfig",
    "AutoModel": "modeling_neobert.NeoBERT",
    "AutoModelForMaskedLM": "modeling_neobert.NeoBERTLMHead",
}


def refusal(source: Source) -> str:
    """Return the reason why the fork's layout does not support this model; empty if it does."""
    if type(source.model).__name__ != "NeoBERTLMHead":
        return f"the fork's layout supports masked language models only, not {type(source.model).__name__}"
    config = source.model.config
    if other := describe_setting_differences(source, embedding_multiplier=1.0):
        return f"a model with {other} is not verified in the fork's layout"
    if config.rope_theta != DEFAULT_ROPE_THETA:
        return f"the fork supports rope_theta {DEFAULT_ROPE_THETA:g}, but the model has {config.rope_theta:g}"
    try:
        _fork_weights(source)
    except ProjectError as error:
        return f"the fork's layout requires a tied decoder, but {error.message}"
    return ""


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write weights, config and tokenizer to `folder`; return a note for conversion.json."""
    save_file(_fork_weights(source), folder / WEIGHTS, METADATA)
    config = source.model.config
    fixed = {"architectures": ["NeoBERTLMHead"], "model_type": "neobert", "auto_map": CLASSES}
    own = {"max_length": config.max_position_embeddings, "dropout": 0.0, "flash_attention": False}
    own |= {"torch_dtype": "float32", "tie_word_embeddings": True}
    write_json(folder / "config.json", {**fixed, **{key: getattr(config, key) for key in KEYS}, **own})
    for name, content in source.tokenizer_files.items():
        (folder / name).write_bytes(content)
    return {"note": "add the fork's modeling_neobert.py and rotary.py to load the folder with transformers"}


def _fork_weights(source: Source) -> dict[str, torch.Tensor]:
    state = {name: tensor.detach() for name, tensor in unique_weights(source.model).items()}
    if source.model.config.tie_word_embeddings:
        state[DECODER] = state[EMBEDDING]
    respelled = hub_to_fork(state)
    # Under transformers 5 the fork's code does not tie: without a decoder in the file it would be random.
    respelled[DECODER] = respelled[EMBEDDING].clone()
    return {name: tensor.contiguous() for name, tensor in respelled.items()}


WRITER = Writer(write, "fork_folder", select_outputs(*ROWS, "last_hidden_state", "logits"), refusal)
