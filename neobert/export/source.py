"""Model to export with its tokenizer: one checkpoint, or the mean of several, in fp32."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.tokenizers import open_tokenizer
from neobert.encoding.declared import MODULES, declared_max_length, read_declared_settings
from neobert.errors import ProjectError
from neobert.export.embedding_files import EmbeddingFiles
from neobert.export.folder import cast_floating, read_tokenizer_files
from neobert.export.saved_settings import refuse_wrong_settings
from neobert.export.weights import load_weights, unique_weights
from neobert.families.hf.parts import first_position
from neobert.families.hf.settings import error_reason
from neobert.families.neobert.build import MODELS
from neobert.families.nsa import model as nsa
from neobert.model import modeling_neobert
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.printable import printable
from neobert.runfiles.checkpoint.manifest import FILE_NAME, file_sha256
from neobert.runfiles.checkpoint.model_files import TOKENIZER_FILES
from neobert.runfiles.checkpoint.refusal import unusable_checkpoint_error
from neobert.runfiles.checkpoint.state import STATE, STATE_DIR
from neobert.runfiles.run_dir import CONFIG
from neobert.runfiles.weights_header import tensor_shapes, weight_files
from neobert.tasks.specs import SPECS

SPECIAL_TOKENS = "special_tokens_map.json"
AUTO_CLASSES = ("AutoModel", *(spec.auto_class for spec in SPECS.values() if spec.has_head))
NSA = nsa.NSAConfig.model_type
EXPORTED = tuple(MODELS[name].__name__ for name in AUTO_CLASSES if name in MODELS)
HEADS = tuple(name.removeprefix("Auto" if name == "AutoModel" else "AutoModel") for name in AUTO_CLASSES)
"""Name suffixes of transformers classes that can be exported: models without a head, or with a task's."""

OWN_TOKENIZER = "copy the files of the tokenizer used in training to this folder"
REMOVED_HINT = "run the same command again: each save removes checkpoints beyond trainer.save_total_limit"
ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Source:
    """Model to export.

    Attributes:
        model: model in fp32 and evaluation mode.
        tokenizer: tokenizer with all special tokens.
        tokenizer_files: content of the tokenizer files by name, written to each exported folder.
        origin: name, step and digests of each checkpoint (`checkpoint_origin`), for conversion.json.
        dtype: dtype of the weights to write, to which the model's are rounded.
        embedding: how texts become vectors; None for a model that declares no pooling, or has a task's head.
        is_embedder: the folder has the files of sentence-transformers.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    tokenizer_files: dict[str, bytes]
    origin: list[dict[str, Any]]
    dtype: torch.dtype = torch.float32
    embedding: EmbeddingFiles | None = None
    is_embedder: bool = False

    @property
    def is_neobert(self) -> bool:
        """Return whether the model is a NeoBERT, as opposed to a transformers model."""
        return isinstance(self.model, NeoBERTPreTrainedModel)

    @property
    def has_sparse_attention(self) -> bool:
        """Return whether the model has native sparse attention, whose library computes on a GPU only."""
        return isinstance(self.model, nsa.NSAPreTrainedModel)

    @property
    def encoder(self) -> PreTrainedModel:
        """Return the model without its head."""
        encoder: PreTrainedModel = self.model.base_model
        return encoder

    @property
    def is_classifier(self) -> bool:
        """Return whether the model has a layer `classifier`, which scores labels of texts or tokens."""
        return hasattr(self.model, "classifier")


def open_source(folders: Sequence[Path], pooling: str | None, dtype: torch.dtype = torch.float32) -> Source:
    """Load the model and tokenizer of one checkpoint folder, or the mean of several checkpoints.

    Args:
        pooling: value that replaces the declared pooling; None keeps it.
        dtype: dtype of the weights to write. The model computes in fp32 with weights rounded to it, so that a
            reader in fp32 must give the same outputs.

    Raises `ProjectError` CKP007 (folder removed), EXP001 and TOK002 (tokenizer), EXP004 and EXP005 (weights),
    EXP007 (config), EXP008 (checkpoints of different models) or EXP009 (pooling does not apply).
    """
    model = _build_model(folders[0])
    _require_same_config(folders)
    load_mean_weights(model, folders)
    round_weights(model, dtype)
    has_head = hasattr(model, "classifier") or model.can_generate()
    if pooling is not None:
        if has_head:
            message = "--pooling applies to encoders only, not to classifiers or causal models"
            raise ProjectError("EXP009", message, "remove --pooling", str(folders[0]))
        if isinstance(model, NeoBERTPreTrainedModel):
            model.config.pooling = pooling
    tokenizer = _load_tokenizer(folders[0], model)
    if not has_head and (declared := declared_max_length(folders[0])) is not None:
        tokenizer.model_max_length = declared  # in a checkpoint, the tokenizer has the rows of its run
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None:
        unused = 0 if isinstance(model, NeoBERTPreTrainedModel) else first_position(model)
        # Consumers truncate at this length, and the model refuses longer rows.
        tokenizer.model_max_length = min(int(limit) - unused, tokenizer.model_max_length)
    return Source(
        model,
        tokenizer,
        _tokenizer_file_contents(tokenizer),
        [checkpoint_origin(folder) for folder in folders],
        dtype,
        None if has_head else read_embedding_files(folders[0], model, pooling, tokenizer.model_max_length),
        is_embedder=not has_head and (folders[0] / MODULES).is_file(),
    )


def read_embedding_files(
    folder: Path, model: PreTrainedModel, pooling: str | None, longest: int
) -> EmbeddingFiles | None:
    """Return the pooling, length limit and prompts of a folder, or None if it declares no pooling.

    Raises `ProjectError` for an unsupported pooling, and for declarations that differ or are unreadable.

    Args:
        model: model of the folder, whose hidden size is the width of the embeddings.
        pooling: value that replaces the declared pooling; None keeps it.
        longest: maximum length of the tokenizer, in tokens.

    Raises `ProjectError` for declarations that contradict each other or are not supported.
    """
    declared = read_declared_settings(folder)
    if (pooling or declared.pooling) is None:
        return None
    return EmbeddingFiles(
        declared.resolve_pooling(pooling, folder),
        model.config.hidden_size,
        min(declared.max_length or longest, longest),
        declared.prompts.by_name,
        declared.normalizes,
        declared.prompts.default,
        declared.pools_prompt,
    )


def _load_tokenizer(folder: Path, model: PreTrainedModel) -> PreTrainedTokenizerFast:
    """Load a folder's tokenizer. Raises `ProjectError` EXP001 if it is missing or has too many tokens.

    Without a padding token, another special token is used, because readers pad batches; no text attends to
    padding.
    """
    try:
        tokenizer = open_tokenizer(TokenizerConfig(path=str(folder)))
    except ProjectError as error:
        if error.code == "TOK001":
            raise ProjectError("EXP001", error.message, OWN_TOKENIZER, error.place) from error
        raise
    highest, rows = max(tokenizer.get_vocab().values()), model.get_input_embeddings().weight.shape[0]
    if highest >= rows:
        message = f"the tokenizer has ids up to {highest:,}, but the model has {rows:,} embeddings"
        raise ProjectError("EXP001", message, OWN_TOKENIZER, str(folder))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or next(iter(tokenizer.all_special_tokens), None)
    return tokenizer


def load_mean_weights(model: PreTrainedModel, folders: Sequence[Path]) -> None:
    """Load the weights of one folder into the model, or the mean of several, summed in fp32.

    Raises `ProjectError` EXP004 if weights are NaN or infinite, and EXP005 if they do not fit the model.
    """
    total: dict[str, Tensor] = {}
    for folder in folders:
        load_weights(model, folder)
        for name, tensor in unique_weights(model).items():
            if not bool(tensor.isfinite().all()):
                hint = "export a checkpoint from before the loss became NaN"
                raise ProjectError("EXP004", f"{name} has NaN or infinite values", hint, str(folder))
            total[name] = total[name] + tensor.detach() if name in total else tensor.detach().clone()
    if len(folders) > 1:
        model.load_state_dict({name: tensor / len(folders) for name, tensor in total.items()}, strict=False)


def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round an fp32 model's weights to values that `dtype` can represent."""
    with torch.no_grad():
        for tensor in unique_weights(model).values():
            tensor.copy_(cast_floating(tensor, dtype))


def checkpoint_origin(folder: Path) -> dict[str, Any]:
    """Return a folder's name, the SHA-256 of its weights and, for a checkpoint, the record of its training.

    The record is step, config digest, metrics and tokens; other folders have None or an empty dict instead.
    Raises `ProjectError` EXP004 if the folder has no weights.
    """
    weights = {file.name: file_sha256(file) for file in weight_files(folder)}
    manifest = folder / FILE_NAME
    saved = json.loads(manifest.read_bytes()) if manifest.is_file() else {}
    return {
        "folder": printable(folder.resolve().name),
        "weights_sha256": weights,
        "step": saved.get("step"),
        "config_digest": saved.get("config_digest"),
        "metrics": saved.get("metrics", {}),
        "tokens_total": _num_trained_tokens(folder),
    }


def _num_trained_tokens(folder: Path) -> int | None:
    """Return the number of tokens that a checkpoint was trained on, or None if it has no trainer state."""
    file = folder / STATE_DIR / STATE
    return json.loads(file.read_bytes()).get("tokens_total") if file.is_file() else None


def _build_model(folder: Path) -> PreTrainedModel:
    """Build the model of config.json with random weights, but not by code in the folder. Raises EXP007."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        name = str((config.architectures or ["none"])[0])
    except Exception as error:  # a damaged file raises errors of every kind
        raise _unknown_model_error(folder, error_reason(error)) from error
    own = modeling_neobert if name in EXPORTED else nsa if config.model_type == NSA else transformers
    found: Any = getattr(own, name, None) if name.endswith((*EXPORTED, *HEADS)) else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise _unknown_model_error(folder, f"architectures is {name}")
    wanted = getattr(found, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):
        raise _unknown_model_error(
            folder, f"architectures is {name}, but model_type is {config.model_type!r}"
        )
    refuse_wrong_settings(folder)
    try:
        model: PreTrainedModel = found(config, **_pooler_arguments(found, folder))
    except Exception as error:  # a setting that its class does not check
        raise _unknown_model_error(folder, error_reason(error)) from error
    return model.float().eval()


def _pooler_arguments(kind: type[PreTrainedModel], folder: Path) -> dict[str, bool]:
    """Return the argument to build an encoder without a pooling layer; empty if the weights have one."""
    takes = "add_pooling_layer" in signature(kind.__init__).parameters
    has_layer = any("pooler." in name for name in tensor_shapes(folder)) if takes else True
    return {} if has_layer else {"add_pooling_layer": False}


def _unknown_model_error(folder: Path, reason: str) -> ProjectError:
    if not folder.is_dir():
        return unusable_checkpoint_error(
            folder, "the checkpoint was removed while the export started", REMOVED_HINT
        )
    return ProjectError(
        "EXP007",
        f"{CONFIG} has no supported model: {printable(reason)}",
        "export a checkpoint of this project, or a transformers folder with a supported architecture",
        str(folder),
    )


def _require_same_config(folders: Sequence[Path]) -> None:
    """Raise `ProjectError` EXP008 if the checkpoints to be averaged have different model configs."""
    ignored = ("transformers_version", "dtype", "torch_dtype", "sentence_transformers")
    configs = [json.loads((folder / CONFIG).read_bytes()) for folder in folders]
    first = {key: value for key, value in configs[0].items() if key not in ignored}
    for folder, config in zip(folders, configs, strict=True):
        differing = sorted(key for key in {*first, *config} - {*ignored} if config.get(key) != first.get(key))
        if differing:
            raise ProjectError(
                "EXP008",
                f"{CONFIG} differs from {folders[0].name}/{CONFIG} in {', '.join(differing)}",
                "pass checkpoints of one run",
                str(folder),
            )


def _tokenizer_file_contents(tokenizer: PreTrainedTokenizerFast) -> dict[str, bytes]:
    """Return the content of the tokenizer's files by name, including a complete special_tokens_map.json."""
    with TemporaryDirectory(prefix="neobert-export-") as folder:
        tokenizer.save_pretrained(folder)
        special = {role: str(getattr(tokenizer, role)) for role in ROLES if getattr(tokenizer, role)}
        Path(folder, SPECIAL_TOKENS).write_text(json.dumps(special, indent=2, ensure_ascii=False) + "\n")
        files = read_tokenizer_files(Path(folder))
    return {name: content for name, content in files.items() if name in TOKENIZER_FILES}
