"""Writer of Hugging Face folders, which transformers loads without this project.

The folder of a NeoBERT model includes the modeling code; a transformers model needs none.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from neobert.errors import ProjectError
from neobert.export.card import model_card
from neobert.export.lazy_weights import METADATA, LazyWeights, write_lazily
from neobert.export.modeling_code import modeling_code
from neobert.export.weights import unique_weights
from neobert.model.configuration_neobert import AUTO_MAP
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.plan.tokenizer_contents import TOKENIZER
from neobert.plan.vocabulary import INERT
from neobert.runfiles.checkpoint.model_files import TOKENIZER_FILES
from neobert.runfiles.weights_header import WEIGHTS

SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
IDENTITY_ACTIVATION = {"activation_fn": "torch.nn.modules.linear.Identity"}
"""Setting of a regression model for CrossEncoder, which would otherwise apply a sigmoid to scores."""


def write_hf_folder(
    model: PreTrainedModel,
    tokenizer_files: Mapping[str, bytes] | None,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write weights, configs, tokenizer files, a model card and, for NeoBERT, modeling code to `folder`.

    Args:
        tokenizer_files: result of `read_tokenizer_files`; None to write no tokenizer.
        weights: tensors to write instead of the model's current weights (`unique_weights`), in their dtype if
            they are `LazyWeights`.
        dtype: dtype of floating-point tensors in the files; None keeps the model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(weights, LazyWeights):
        write_lazily(weights, folder)
    else:
        tensors = unique_weights(model) if weights is None else weights
        written = {name: cast_floating(each.detach(), dtype).contiguous() for name, each in tensors.items()}
        save_file(written, folder / WEIGHTS, METADATA)
    (folder / "config.json").write_text(portable_config(model, dtype), encoding="utf-8")
    if model.can_generate():
        generation = copy.deepcopy(model.generation_config)
        generation._from_model_config = False  # else transformers replaces it with the values of config.json
        text = generation.to_json_string(use_diff=True)
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    if isinstance(model, NeoBERTPreTrainedModel):
        for name, code in modeling_code().items():
            (folder / name).write_text(code, encoding="utf-8")
    for name, content in (tokenizer_files or {}).items():
        (folder / name).write_bytes(content)
    card = model_card(model, is_chat=model.can_generate() and TEMPLATE in (tokenizer_files or {}))
    (folder / "README.md").write_text(card, encoding="utf-8")


def cast_floating(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Cast a floating-point tensor to `dtype`; other tensors, and all if `dtype` is None, are unchanged."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def portable_config(model: PreTrainedModel, dtype: torch.dtype | None = None) -> str:
    """Return the text of config.json without machine-specific settings; for NeoBERT, with auto_map.

    `dtype`: type of the written weights; None: the model's.
    """
    portable = copy.deepcopy(model.config)
    portable.architectures = [type(model).__name__.removeprefix("FSDP")]  # fully_shard renames the class
    portable.dtype = str(dtype or model.dtype).removeprefix("torch.")
    if portable.problem_type == "regression":
        portable.sentence_transformers = IDENTITY_ACTIVATION
    if isinstance(model, NeoBERTPreTrainedModel):
        portable.attn_backend = "auto"
        portable.kernel_backend = "torch"
        portable.auto_map = dict(AUTO_MAP)
    return str(portable.to_json_string(use_diff=True))


def read_tokenizer_files(source: Path) -> dict[str, bytes]:
    """Return the content of the tokenizer files in a folder, by name, to copy them into every checkpoint.

    They are read once at the start of a run, because the Hub cache may be removed before the last save.
    Raises `ProjectError` EXP001 if the folder has no tokenizer files.
    """
    files = {name: (source / name).read_bytes() for name in TOKENIZER_FILES if (source / name).is_file()}
    if not files:
        raise ProjectError(
            "EXP001",
            "the folder has no tokenizer files",
            f"save the tokenizer to the folder, including {TOKENIZER_FILES[0]}",
            place=str(source),
        )
    if SETTINGS in files:
        files[SETTINGS] = _with_portable_class(files[SETTINGS])
    return files


def drop_inert_tokens(files: Mapping[str, bytes], size: int) -> Mapping[str, bytes]:
    """Return tokenizer files without the inert tokens whose ids are `size` or higher.

    Earlier versions wrote them into every tokenizer of prepared text.
    """
    content = json.loads(files.get(TOKENIZER, b"{}"))
    added = content.get("added_tokens", [])
    kept = [token for token in added if token["id"] < size or not INERT.fullmatch(token["content"])]
    if len(kept) == len(added):
        return files
    text = json.dumps(content | {"added_tokens": kept}, indent=2, ensure_ascii=False)
    return {**files, TOKENIZER: text.encode()}


def with_tokenizer_settings(files: Mapping[str, bytes], **changes: object) -> Mapping[str, bytes]:
    """Return tokenizer files with changed values in tokenizer_config.json."""
    settings = json.loads(files.get(SETTINGS, b"{}")) | changes
    return {**files, SETTINGS: _settings_text(settings)}


def _with_portable_class(content: bytes) -> bytes:
    """Return tokenizer_config.json with a tokenizer class that transformers releases before 5 also have."""
    settings = json.loads(content)
    if settings.get("tokenizer_class") != "TokenizersBackend":
        return content
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    return _settings_text(settings)


def _settings_text(settings: Mapping[str, Any]) -> bytes:
    return (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
