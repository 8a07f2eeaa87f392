"""Construction of transformers models. Imports torch.

Only classes of the installed transformers package are used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.export.weights import LoadReport, load_state
from neobert.families.backbone import Backbone
from neobert.families.hf.architecture import BARE, VOCABULARY_HEADS, Architecture
from neobert.families.hf.attention import PACKED, PLAIN, choose_kernel, use_attention
from neobert.families.hf.causal import prepare_causal
from neobert.families.hf.heads import takes_texts
from neobert.families.hf.initial_weights import expected_weights
from neobert.families.hf.parts import (
    first_position,
    head_prefixes,
    model_architecture,
    model_blocks,
    model_head,
)
from neobert.families.hf.quiet import suppress_loading_output
from neobert.families.hf.settings import CODE, KV_HEADS, POSITIONS, Settings, error_reason
from neobert.families.hf.spec import model_section, num_position_rows, read_model_settings
from neobert.families.hf.weight_files import map_weight_files
from neobert.families.shape import ModelShape
from neobert.families.table import family_by_model_type, max_row_length, model_shape, requested_kernels
from neobert.model.attention import enter_layer, record_kernel
from neobert.model.backends import ChosenKernel
from neobert.parallel import World
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.model_folder import read_json
from neobert.runfiles.run_dir import CONFIG
from neobert.runfiles.weights_header import tensor_shapes

log = logging.getLogger(__name__)

LEFT_OUT = (
    "auto_map",
    "architectures",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "quantization_config",
)
"""Keys of a config.json that name code to run, or describe the file and not the model."""
WHOLE_MODEL = "pass a folder with model.safetensors, of a model that needs no code of its own"
"""Hint for a model that is loaded for inference, not for training."""
TOKENS = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids")
"""Inputs of a model with one value per token."""


def build(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,
    auto_class: str,
    settings: Mapping[str, Any],
) -> Backbone:
    """Build the model with a head of transformers, or without, initialized by transformers."""
    if not takes_texts(auto_class):  # the task pools
        settings = {name: value for name, value in settings.items() if name != "pooling"}
    configuration = build_config(config, tokenizer, vocab_size, settings)
    own = _without_pooler(auto_class, configuration)
    with no_init_weights():  # by torch's layers: transformers would draw all of them again
        model = _transformers_class(auto_class).from_config(configuration, dtype=torch.float32, **own).train()
    model.init_weights()
    shape, kernel = model_shape(config, vocab_size), None
    _refuse_other_names(model, auto_class, config, shape)
    if config.datacollator.pack_sequences:
        requested = requested_kernels(config)[1]
        kernel = choose_kernel(
            requested, world.device.type, world.compute_dtype, shape.attention, max_row_length(config)
        )
    backbone = backbone_from_model(model, auto_class, shape, kernel)
    name, reason = backbone.attention, backbone.attention_reason
    log.info("model: transformers %s, attention: %s (%s)", configuration.model_type, name, reason)
    return backbone


def backbone_from_model(
    model: PreTrainedModel,
    auto_class: str,
    shape: ModelShape,
    kernel: ChosenKernel | None = None,
) -> Backbone:
    """Return the backbone of a transformers model with the head of an auto class, or with none.

    Args:
        kernel: attention kernel of packed rows; None: rows are padded.
    """
    blocks, encoder, padded = model_blocks(model), model.base_model, str(model.config._attn_implementation)
    architecture = model_architecture(model)
    first = first_position(model)
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    read = tuple(name for name in TOKENS if has_types or name != "token_type_ids")
    own = prepare_causal(model) if shape.attention.is_causal else {}
    for number, block in enumerate(blocks):
        block.register_forward_pre_hook(
            partial(_record_kernel, number, padded if kernel is None else kernel.name)
        )
    if kernel is not None:
        model.config._attn_implementation = PACKED

    def hidden(inputs: Mapping[str, Any]) -> Tensor:
        tokens = {name: inputs[name] for name in read if inputs.get(name) is not None}
        if first and "position_ids" in tokens:
            tokens["position_ids"] = tokens["position_ids"] + first
        if (cu_seqlens := inputs.get("cu_seqlens")) is None:
            with use_attention(model, padded):
                mask = inputs["attention_mask"]
                states: Tensor = encoder(**tokens, attention_mask=mask, **own).last_hidden_state
            return states.flatten(0, -2)
        assert kernel is not None, "built for padded rows"
        bounds = {"cu_seq_lens_q": cu_seqlens, "max_length_q": inputs["max_seqlen"], "kernel": kernel.name}
        row = {name: each[None] for name, each in tokens.items()}
        states = encoder(**row, **bounds, **own).last_hidden_state
        return states[0]

    def plain(document: Tensor) -> Tensor:
        places = torch.arange(len(document), device=document.device)[None]
        # Not the model's own: RoBERTa stops counting at a padding token, which a test may draw.
        inputs: dict[str, Any] = {"input_ids": document[None], "position_ids": places + first} | own
        if architecture.packs:
            inputs["spec"] = shape.attention
        by = PLAIN if architecture.packs else padded
        with torch.compiler.set_stance("force_eager"), use_attention(model, by):
            states: Tensor = encoder(**inputs).last_hidden_state[0]
        return states

    return Backbone(
        model=model,
        blocks=list(blocks),
        hidden=hidden,
        plain=plain,
        head=model_head(model, auto_class),
        attention=padded if kernel is None else kernel.name,
        attention_reason="padded rows" if kernel is None else kernel.reason,
        load=partial(load_weights, model, auto_class),
        matrix_layouts={f"{name}.weight": each.layout for name, each in shape.linear_layers.items()},
        head_parts=head_prefixes(model, auto_class),
        first_position=first,
        identity={"model configuration": config_digest(model.config)},
    )


def _refuse_other_names(
    model: PreTrainedModel, auto_class: str, config: RunConfig, shape: ModelShape
) -> None:
    """Raise `ProjectError` MOD006 if names or sizes of a new architecture are not those of its model.

    Training from random weights does not depend on them, but adapters and later runs do.
    """
    settings, architecture = read_model_settings(model_section(config))
    prefix = "" if auto_class == BARE else architecture.prefix
    own = {name: tuple(each.shape) for name, each in model.state_dict(keep_vars=True).items()}
    wanted = {prefix + name: size for name, size in expected_weights(shape, architecture, settings)}
    wrong = [f"{name} {list(size)}" for name, size in wanted.items() if own.get(name) != size]
    if wrong:
        name = model.config.model_type
        message = f"the {name} of transformers has no such weights: {listed(wrong)}"
        hint = f"correct the description of {name} in neobert/families/hf/architectures"
        raise ProjectError(CODE, message, hint, "model")


def _record_kernel(number: int, attention: str, _block: nn.Module, _arguments: Any) -> None:
    enter_layer(number)
    record_kernel(attention)


def build_config(
    config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int, head: Mapping[str, Any]
) -> PretrainedConfig:
    """Return transformers' configuration: the settings of the run with the ids of its own tokenizer.

    Raises `ProjectError` MOD006 for a value that transformers rejects.
    """
    requested, architecture = read_model_settings(model_section(config))
    values = {name: value for name, value in requested.values.items() if name not in LEFT_OUT}
    is_fresh = model_section(config).pretrained_checkpoint is None
    _refuse_other_padding(tokenizer.pad_id, requested, architecture, is_fresh=is_fresh)
    model_type = values.pop("model_type")
    known = CONFIG_MAPPING[model_type]
    values |= _special_token_ids(tokenizer, known, values) | {
        "vocab_size": vocab_size,
        architecture.setting_name(POSITIONS): num_position_rows(
            requested, architecture, max_row_length(config)
        ),
    }
    if not architecture.has_sdpa:
        values["attn_implementation"] = "eager"
    if hasattr(known, KV_HEADS):
        values[KV_HEADS] = model_shape(config, vocab_size).attention.kv_heads
    values = _with_head(values, architecture, head)
    try:
        settings: PretrainedConfig = AutoConfig.for_model(model_type, **values)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        message = f"transformers rejects the configuration: {printable(str(error))}"
        raise ProjectError(CODE, message, "correct model.config", "model.config") from error
    return settings


def _special_token_ids(tokenizer: TokenizerBundle, known: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of special tokens; further end-of-text ids come from the file."""
    ids: dict[str, Any] = tokenizer.role_ids()
    if not hasattr(known, "mask_token_id"):
        del ids["mask_token_id"]
    ends = values.get("eos_token_id")
    return ids | ({"eos_token_id": ends} if isinstance(ends, list) and ids["eos_token_id"] in ends else {})


def _refuse_other_padding(
    pad_id: int | None, settings: Settings, architecture: Architecture, *, is_fresh: bool
) -> None:
    """Raise `ProjectError` MOD006 if the padding id gives tokens other positions than in training.

    `pad_id`: padding token of the tokenizer; None if it has none.
    """
    padding, expected = architecture.padding, architecture.first_position(settings) - 1
    if padding is None or pad_id == expected:
        return
    # A fresh model may begin earlier: its table of positions then has rows to spare.
    if is_fresh and not padding.is_fixed and pad_id is not None and pad_id < expected:
        return
    own = "no padding token" if pad_id is None else f"padding token id {pad_id}"
    raise ProjectError(
        CODE,
        f"the tokenizer has {own}, but position embeddings of this model need padding token id {expected}",
        "set tokenizer.path to the tokenizer of the model",
        "tokenizer",
    )


def _with_head(values: dict[str, Any], architecture: Architecture, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings plus the head's settings, under the architecture's names."""
    own = {name: value for name, value in head.items() if name != "pooling"}
    if theirs := architecture.poolings.get(head.get("pooling", "")):
        own["classifier_pooling"] = theirs
    if "num_labels" in own:  # a config.json may have the labels of another task
        values = {name: value for name, value in values.items() if name not in ("id2label", "label2id")}
    return values | own


def config_digest(settings: PretrainedConfig) -> str:
    """Return the SHA-256 of a configuration, without keys that may differ between sessions of a run."""
    values = settings.to_dict()
    for name in ("transformers_version", "dtype", "_attn_implementation", "attn_implementation"):
        values.pop(name, None)
    return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def load_weights(model: PreTrainedModel, auto_class: str, folder: Path) -> LoadReport:
    """Load the weights of a transformers folder in place. Reads safetensors only.

    A head over the vocabulary must be in the folder; another head keeps its initial values where the folder
    lacks it or has it in another shape. Raises `ProjectError` EXP005.
    """
    if any(each.is_meta for each in model.parameters()):
        state, absent, unused = map_weight_files(model, folder)
    else:
        hint = "set model.pretrained_checkpoint to a folder with config.json and model.safetensors"
        loaded, absent, unused = read_model(auto_class, folder, hint, config=model.config)
        state = {name: each for name, each in loaded.state_dict().items() if name not in absent}
    required = [name for name in absent if not _may_be_missing(model, auto_class, name)]
    other = "set model.config to the checkpoint's config.json, or use another checkpoint"
    refuse_missing_weights(required, folder, other)
    load_state(model, state)
    return LoadReport(
        path=str(folder),
        num_tensors=len(state),
        num_parameters=sum(each.numel() for each in state.values()),
        dtypes=("float32",),
        initialized=tuple(absent),
        unused=tuple(unused),
    )


def _may_be_missing(model: PreTrainedModel, auto_class: str, name: str) -> bool:
    return auto_class not in VOCABULARY_HEADS and name.startswith(head_prefixes(model, auto_class))


def read_model(
    auto_class: str, folder: Path, hint: str, config: PretrainedConfig | None = None
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Load a model in fp32 from a transformers folder with safetensors. `config` None: its own config.json.

    Returns the model, the names of weights that the folder lacks or has in another shape, which are
    initialized randomly, and the names that the model lacks. Raises `ProjectError` EXP005 with the hint if
    the folder cannot be loaded.
    """
    if config is None:  # perhaps of another family of this project, whose module registers its classes
        import_module(family_by_model_type(str(read_json(folder / CONFIG).get("model_type"))).module)
    try:
        with suppress_loading_output():
            model, report = _transformers_class(auto_class).from_pretrained(
                folder,
                **({} if config is None else {"config": config, **_without_pooler(auto_class, config)}),
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,  # by default transformers asks on the terminal, and runs the code
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # a setting that no class checks raises errors of every kind
        if isinstance(error, SafetensorError):
            tensor_shapes(folder)  # raises for a file that ends early, and names the file
        message = f"the weights cannot be loaded: {error_reason(error)}"
        raise ProjectError("EXP005", message, hint, str(folder)) from error
    reshaped = {str(each[0]) if isinstance(each, tuple) else str(each) for each in report["mismatched_keys"]}
    return model, sorted({*report["missing_keys"], *reshaped}), sorted(map(str, report["unexpected_keys"]))


def refuse_missing_weights(names: Sequence[str], folder: Path, hint: str) -> None:
    """Raise `ProjectError` EXP005 if there are names of weights that a checkpoint lacks."""
    if names:
        message = f"the checkpoint lacks weights of the model: {listed(names)}"
        raise ProjectError("EXP005", message, hint, str(folder))


def _transformers_class(auto_class: str) -> Any:
    return getattr(transformers, auto_class)


def _without_pooler(auto_class: str, configuration: PretrainedConfig) -> dict[str, bool]:
    """Return the argument that omits the pooling layer of a headless encoder; empty if there is none.

    The weights of that layer would not train.
    """
    if auto_class != BARE:
        return {}
    takes = signature(AutoModel._model_mapping[type(configuration)].__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}
