"""Inference over packed rows, with the kernels of a training step.

Shapes: T tokens of a packed row, M rows of hidden states, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from neobert.config.schema import (
    DataCollatorConfig,
    DatasetConfig,
    HfModelConfig,
    ModelConfig,
    RunConfig,
    TrainerConfig,
)
from neobert.encoding.packed_rows import PackedRow
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.export.layouts import DECODER, StateDict, join_gates
from neobert.export.saved_settings import refuse_wrong_settings
from neobert.export.weights import read_weights, unique_weights
from neobert.families.backbone import Backbone
from neobert.families.hf.architecture import CAUSAL, MASKED
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.hf.attention import choose_kernel
from neobert.families.hf.build import TOKENS, WHOLE_MODEL, read_model, refuse_missing_weights
from neobert.families.hf.build import backbone_from_model as transformers_backbone
from neobert.families.hf.parts import model_architecture
from neobert.families.hf.settings import error_reason
from neobert.families.hf.spec import HF, read_shape
from neobert.families.neobert.build import backbone_from_model
from neobert.families.table import FAMILIES, family_by_model_type, is_causal
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives.packed_encoder import KernelObjective
from neobert.objectives.step_kernels import resolve_step_kernels
from neobert.objectives.tokens import TokenObjective
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.model_folder import CODE, NEOBERT_FOLDER, read_json

ENCODER = "model."
KERNEL_MULTIPLE = 128
"""Runs on a GPU are padded to a multiple of this many tokens, so that shapes repeat."""
OTHER_HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


def run_length_multiple(device: torch.device) -> int:
    """Return the number that a packed row's length in tokens must be a multiple of."""
    return KERNEL_MULTIPLE if device.type == "cuda" else 1


class InferenceModel:
    """Model with a language-modeling head that computes packed rows without gradients.

    Attributes:
        device: device that packed rows must be on.
        hidden_size: D.
        max_length: longest sequence in tokens.
        num_rows: rows of the embedding matrix.
        kernels: kernels of blocks and attention, for reports.
        length_multiple: the length of each packed row must be a multiple of this number of tokens.
        is_causal: the head predicts next tokens instead of masked tokens.
    """

    def __init__(
        self, objective: TokenObjective, kernels: str, device: torch.device, dtype: torch.dtype
    ) -> None:
        settings = objective.model.config
        self.device, self.hidden_size = device, settings.hidden_size
        self.max_length, self.num_rows = objective.backbone.max_length, settings.vocab_size
        self.length_multiple = run_length_multiple(device)
        self.is_causal = is_causal(settings.model_type)
        self.kernels = f"{kernels}, attention {objective.backbone.attention}"
        self._objective, self._dtype = objective.to(device).eval(), dtype

    def extend_to(self, length: int) -> None:
        """Raise `max_length` to `length` tokens, also beyond the lengths of the model's training.

        Raises `ProjectError` if the model has learned positions and fewer than `length` of them.
        """
        settings = self._objective.model.config
        if length <= self.max_length:
            return
        if not getattr(settings, "rope", False):
            message = f"{length:,} tokens exceed the {self.max_length:,} positions of the model"
            hint = f"use at most {self.max_length} tokens"
            raise ProjectError(CODE, message, hint, str(settings.name_or_path), EXIT_USAGE)
        self.max_length = settings.max_position_embeddings = length

    @torch.no_grad()
    def hidden_states(self, packed: PackedRow) -> Tensor:
        """Return a packed row's final hidden states [T, D]; filler tokens have undefined states."""
        with autocast_on(self._dtype, self.device):
            return self._objective.final_states(self._objective.encode(packed.inputs))

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Decode final hidden states: [M, D] to [M, V]."""
        with autocast_on(self._dtype, self.device):
            return self._objective.decode(hidden)


@contextmanager
def autocast_on(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Compute in `dtype`, by autocast, and on `device` inside the `with` block.

    The device becomes the current GPU, because Triton ignores the device of its tensors.
    """
    in_type = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with on_device, in_type:
        yield


def load_model(
    folder: Path, device: torch.device, dtype: torch.dtype, *, needs_decoder: bool = False
) -> InferenceModel:
    """Load a NeoBERT checkpoint, or a transformers model, without running code from the folder.

    Without `needs_decoder`, head weights are not loaded. Raises `ProjectError` for an unsupported model or
    unusable weights, and, with `needs_decoder`, for a model with the head of another task.
    """
    settings = read_json(folder / "config.json")
    if needs_decoder:
        _refuse_other_head(settings, folder)
    kind = settings.get("model_type")
    supported = (*(name for name in FAMILIES if name != HF.name), *ARCHITECTURES)
    if kind not in supported:
        known = ", ".join(supported)
        message = f"model_type {printable(str(kind))} is not supported (supported: {known})"
        raise ProjectError(CODE, message, "pass a folder with a supported model_type", str(folder))
    refuse_wrong_settings(folder)
    if kind == NeoBERTConfig.model_type:
        return _build_inference_model(load_neobert(folder, needs_decoder=needs_decoder), device, dtype)
    return _load_transformers(folder, device, dtype, needs_decoder=needs_decoder)


def _refuse_other_head(settings: Mapping[str, Any], folder: Path) -> None:
    """Raise EXP005 for a model with the head of a fine-tuning task.

    With tied embeddings, such a model has all decoder weights, but its hidden states do not predict tokens.
    """
    names = settings.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith(OTHER_HEADS):
        message = f"the model is a {printable(name)}, which was not trained to predict masked tokens"
        raise ProjectError("EXP005", message, "pass a checkpoint of a pretraining run", str(folder))


@contextmanager
def convert_config_errors(folder: Path) -> Iterator[None]:
    """Convert errors in the `with` block to a `ProjectError` about an invalid config.json of a NeoBERT."""
    try:
        yield
    except ProjectError:
        raise
    except Exception as error:  # a setting that no class checks raises errors of every kind
        message = f"config.json is not a NeoBERT config: {error_reason(error)}"
        raise ProjectError(CODE, message, NEOBERT_FOLDER, str(folder)) from error


def load_neobert(folder: Path, *, needs_decoder: bool) -> NeoBERTLMHead:
    """Load a NeoBERT in fp32 with all its weights. Without `needs_decoder`, the decoder is the embedding.

    Raises `ProjectError` if config.json is not a NeoBERT config, or EXP004 and EXP005 for unusable weights.
    """
    state = join_gates(read_weights(folder))
    if not any(name.startswith(ENCODER) for name in state):
        state = {ENCODER + name: tensor for name, tensor in state.items()}  # the encoder, saved alone
    with convert_config_errors(folder):
        settings = NeoBERTConfig.from_pretrained(folder, local_files_only=True)
        is_tied = bool(settings.tie_word_embeddings)
        if not needs_decoder:
            settings.tie_word_embeddings = True
        with torch.device("meta"):
            model = NeoBERTLMHead(settings)
    kept = (ENCODER, "decoder.") if needs_decoder and not is_tied else (ENCODER,)
    _assign_weights(
        model, {name: each.float() for name, each in state.items() if name.startswith(kept)}, folder
    )
    return model


def _assign_weights(model: NeoBERTLMHead, state: StateDict, folder: Path) -> None:
    wanted = unique_weights(model)
    missing = sorted(wanted.keys() - state.keys())
    other = sorted(name for name in state.keys() & wanted.keys() if state[name].shape != wanted[name].shape)
    if missing or other:
        hint = (
            "the checkpoint has no decoder: pass a checkpoint of a pretraining run"
            if DECODER in missing
            else ""
        )
        message = f"weights are missing or have another shape: {listed([*missing, *other])}"
        raise ProjectError("EXP005", message, hint or "pass a complete checkpoint", str(folder))
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()


def _build_inference_model(model: NeoBERTLMHead, device: torch.device, dtype: torch.dtype) -> InferenceModel:
    kernels = resolve_step_kernels(run_config(model.config, dtype), device.type, dtype)
    model.config.attn_backend = kernels.model_attention
    backbone = backbone_from_model(model, kernels)
    objective = (
        KernelObjective(backbone, kernels, capacity=KERNEL_MULTIPLE)
        if kernels.replaces_blocks
        else TokenObjective(backbone, targets_only=True)
    )
    return InferenceModel(objective, kernels.name, device, dtype)


def _load_transformers(
    folder: Path, device: torch.device, dtype: torch.dtype, *, needs_decoder: bool
) -> InferenceModel:
    auto_class = CAUSAL if is_causal(read_json(folder / "config.json")["model_type"]) else MASKED
    model, absent, _ = read_model(auto_class, folder, WHOLE_MODEL)
    base = f"{model.base_model_prefix}."
    needed = [name for name in absent if needs_decoder or name.startswith(base)]
    refuse_missing_weights(needed, folder, "pass a complete checkpoint")
    backbone = packed_backbone(model, auto_class, folder, device, dtype)
    return InferenceModel(TokenObjective(backbone, targets_only=True), "torch", device, dtype)


def packed_backbone(
    model: PreTrainedModel,
    auto_class: str,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
) -> Backbone:
    """Return a backbone that computes packed rows; a model that cannot pack computes them as padded rows.

    Raises `ProjectError` ATT001 if no attention kernel can run, MOD006 for an invalid config.json.
    """
    family = family_by_model_type(model.config.model_type)
    if family is not HF:
        own: Backbone = import_module(family.module).inference_backbone(model, device, dtype)
        return own
    shape = read_shape(HfModelConfig(config=str(folder)), model.config.vocab_size, 1)
    if model_architecture(model).packs:
        kernel = choose_kernel("auto", device.type, dtype, shape.attention)
        return transformers_backbone(model, auto_class, shape, kernel)
    backbone = transformers_backbone(model, auto_class, shape)
    return replace(backbone, hidden=partial(_padded_hidden_states, backbone.hidden))


def _padded_hidden_states(hidden: Callable[[Mapping[str, Any]], Tensor], inputs: Mapping[str, Any]) -> Tensor:
    """Return the hidden states [T, D] of a packed row, computed as padded rows of similar lengths."""
    lengths = inputs["cu_seqlens"].diff()
    is_token = torch.arange(inputs["max_seqlen"], device=lengths.device) < lengths[:, None]
    rows = {
        name: torch.zeros_like(is_token, dtype=torch.int64).masked_scatter(is_token, inputs[name])
        for name in TOKENS
        if inputs.get(name) is not None
    }
    states = hidden({**rows, "attention_mask": is_token})
    return states[is_token.flatten()]


def run_config(settings: NeoBERTConfig, dtype: torch.dtype) -> RunConfig:
    """Return a run config for this model, from which the kernels are chosen."""
    section = ModelConfig(
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_attention_heads,
        intermediate_size=settings.intermediate_size,
        max_position_embeddings=settings.max_position_embeddings,
        rope=settings.rope,
        rms_norm=settings.rms_norm,
        hidden_act=cast("Literal['swiglu', 'gelu']", settings.hidden_act),
    )
    return RunConfig(
        model=section,
        dataset=DatasetConfig(max_seq_length=settings.max_position_embeddings),
        datacollator=DataCollatorConfig(pack_sequences=True),
        trainer=TrainerConfig(
            mixed_precision="bf16" if dtype == torch.bfloat16 else "no",
            gradient_checkpointing=False,
            torch_compile=False,
        ),
    )
