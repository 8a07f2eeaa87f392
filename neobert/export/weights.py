"""Strict loading of safetensors weights, with fused (`hub`) or separate (`fork`) gate and up matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from neobert.errors import ProjectError
from neobert.export.layouts import DECODER, DECODER_BIAS, EMBEDDING, GATE, StateDict, join_gates
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.parallel.sharding import shard_like
from neobert.plurals import listed
from neobert.runfiles.weights_header import ANOTHER, tensor_shapes, weight_files

ROTATIONS = "freqs_cis"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Summary of loaded weights.

    Attributes:
        layout: layout of the feed-forward's matrices.
        initialized: names of weights of the model that keep their initial values.
        unused: names of tensors of the file that the model lacks.
    """

    path: str
    num_tensors: int
    num_parameters: int
    dtypes: tuple[str, ...]
    layout: Literal["hub", "fork"] = "hub"
    initialized: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def load_weights(model: PreTrainedModel, path: Path, missing_ok: tuple[str, ...] = ()) -> LoadReport:
    """Load the weights of a safetensors file, or of a folder with safetensors, into the model.

    Raises `ProjectError` if a tensor is missing, unexpected or of another shape, or if only the model or only
    the file ties the decoder. The model is then unchanged.

    Args:
        missing_ok: name prefixes of weights that keep their initial values if the file lacks them or has
            another shape, such as a new head. If given, a decoder that the model lacks is ignored.
    """
    state = read_weights(path)
    layout: Literal["hub", "fork"] = "fork" if any(name.endswith(GATE) for name in state) else "hub"
    if isinstance(model, NeoBERTPreTrainedModel):
        state = join_gates(state)
        if model.config.tie_word_embeddings:
            state = _drop_tied_copy(state, path)
    state, of_head = match_prefix(state, model)
    own = model.state_dict()
    found = state = _drop_computed_buffers(state, model, own)
    if missing_ok:
        state = {
            name: tensor
            for name, tensor in state.items()
            if not (name.startswith("decoder.") and name not in own)
            and not (name.startswith(missing_ok) and name in own and own[name].shape != tensor.shape)
        }
    _check_fit(state, model, path, missing_ok)
    load_state(model, state)
    return LoadReport(
        path=str(path),
        layout=layout,
        num_tensors=len(state),
        num_parameters=sum(tensor.numel() for tensor in state.values()),
        dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in state.values()})),
        initialized=tuple(sorted(unique_weights(model).keys() - state.keys())),
        unused=tuple(sorted((found.keys() - own.keys()) | of_head)),
    )


@torch.no_grad()
def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy full weights into a model, by name. A rank with a shard of a weight reads only its rows."""
    own = model.state_dict(keep_vars=True)
    for name, each in state.items():
        own[name].copy_(shard_like(each, own[name]))


def _drop_computed_buffers(state: StateDict, model: PreTrainedModel, own: Mapping[str, Tensor]) -> StateDict:
    """Drop buffers that the model computes: older releases of transformers saved BERT's position ids."""
    computed = {name for name, _ in model.named_buffers()} - own.keys()
    return {name: tensor for name, tensor in state.items() if name not in computed}


def match_prefix(state: StateDict, model: PreTrainedModel) -> tuple[StateDict, set[str]]:
    """Return weights by their names in the model, and the names of head weights that an encoder lacks.

    Encoder weights have the prefix `base_model_prefix` in a model with a head, and none in a bare encoder.
    """
    prefix = f"{model.base_model_prefix}."
    below = {name for name in state if name.startswith(prefix)}
    if model.base_model is model and below:
        return {name.removeprefix(prefix): state[name] for name in below}, state.keys() - below
    if model.base_model is not model and not below:
        return {prefix + name: each for name, each in state.items()}, set()
    return state, set()


def read_weights(path: Path) -> StateDict:
    """Read the tensors of a safetensors file, or of a folder with model.safetensors or its shards, by name.

    Rotations that early versions of the published NeoBERT saved are omitted: they follow from rope_theta.
    Raises `ProjectError` EXP004 if a file is missing or cannot be read.
    """
    files = [path] if path.is_file() else weight_files(path)
    state: StateDict = {}
    for file in files:
        tensor_shapes(file)
        with _convert_read_errors(file):
            state.update(load_file(file))
    return {name: tensor for name, tensor in state.items() if not name.endswith(ROTATIONS)}


@contextmanager
def _convert_read_errors(file: Path) -> Iterator[None]:
    """Convert an error of reading a safetensors file in the `with` block to `ProjectError` EXP004."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        message = f"the file is not a readable safetensors file: {error}"
        raise ProjectError("EXP004", message, ANOTHER, place=str(file)) from error


def _drop_tied_copy(state: StateDict, path: Path) -> StateDict:
    """Drop a saved copy of the tied decoder. Raises `ProjectError` EXP003 if the decoder is untied."""
    decoder, embedding = state.get(DECODER), state.get(EMBEDDING)
    is_own = decoder is not None and (embedding is None or not torch.equal(decoder, embedding))
    if is_own or DECODER_BIAS in state:
        raise ProjectError(
            "EXP003",
            "the checkpoint has its own decoder, but the config ties the decoder to the embedding",
            "set model.tie_word_embeddings to false",
            place=str(path),
        )
    return {name: tensor for name, tensor in state.items() if name != DECODER}


def _check_fit(state: StateDict, model: PreTrainedModel, path: Path, missing_ok: tuple[str, ...]) -> None:
    """Raise `ProjectError` EXP005 unless `state` has exactly the model's tensors, with the same shapes.

    Tensors whose names start with one of `missing_ok` may be missing.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in unique_weights(model).items()}
    missing, unexpected = wanted.keys() - state.keys(), state.keys() - wanted.keys()
    missing = {name for name in missing if not name.startswith(missing_ok or "\0")}
    reshaped = [
        f"{name} {tuple(state[name].shape)}, expected {wanted[name]}"
        for name in sorted(wanted.keys() & state.keys())
        if tuple(state[name].shape) != wanted[name]
    ]
    if not (missing or unexpected or reshaped):
        return
    parts = [
        _format_names("missing", missing),
        _format_names("unexpected", unexpected),
        _format_names("wrong shape of", reshaped),
    ]
    raise ProjectError(
        "EXP005",
        f"the weights do not fit the model: {'; '.join(part for part in parts if part)}",
        _mismatch_hint(missing, reshaped),
        place=str(path),
    )


def unique_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model without duplicates: a shared tensor has its first name only."""
    names: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: each for name, each in state.items() if names.setdefault(id(each), name) == name}


def _format_names(label: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    return f"{label} {listed(ordered)}" if ordered else ""


def _mismatch_hint(missing: Iterable[str], reshaped: list[str]) -> str:
    if set(missing) == {DECODER, DECODER_BIAS}:
        return "set model.tie_word_embeddings to true: the checkpoint's decoder is its embedding"
    if reshaped and all(each.startswith((DECODER, DECODER_BIAS, EMBEDDING)) for each in reshaped):
        return "set model.vocab_size to the number of rows of the checkpoint's embedding"
    return "set the keys of section model to the values in the checkpoint's config.json"
