"""Conversion between the published weight layout ("hub") and the layout of its best-known fork.

hub   ffn.w12 has the rows of gate, then the rows of up; the decoder is untied and has a bias.
fork  ffn.w1 is gate and ffn.w2 is up; the decoder is tied to the embedding, without a bias.

This project writes w12, with the decoder tied or untied as configured. Conversions are bit-exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from neobert.errors import ProjectError

StateDict = dict[str, Tensor]

EMBEDDING = "model.encoder.weight"
DECODER = "decoder.weight"
DECODER_BIAS = "decoder.bias"
GATE, UP, GATE_AND_UP = ".ffn.w1.weight", ".ffn.w2.weight", ".ffn.w12.weight"


def join_gates(state: Mapping[str, Tensor]) -> StateDict:
    """Concatenate w1 (gate) and w2 (up) into w12; other tensors are unchanged.

    Raises `ProjectError` EXP002 if a block has only one of them.
    """
    joined: StateDict = {}
    for name, tensor in state.items():
        if name.endswith(GATE):
            block = name.removesuffix(GATE)
            joined[block + GATE_AND_UP] = torch.cat([tensor, _require_tensor(state, block + UP)])
        elif name.endswith(UP):
            _require_tensor(state, name.removesuffix(UP) + GATE)
        else:
            joined[name] = tensor
    return joined


def split_gates(state: Mapping[str, Tensor]) -> StateDict:
    """Split w12 into w1 (gate, the first half of the rows) and w2 (up); other tensors are unchanged."""
    cut: StateDict = {}
    for name, tensor in state.items():
        if name.endswith(GATE_AND_UP):
            block = name.removesuffix(GATE_AND_UP)
            gate, up = tensor.chunk(2)
            cut[block + GATE], cut[block + UP] = gate.clone(), up.clone()
        else:
            cut[name] = tensor
    return cut


def _require_tensor(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        message = f"{name} is missing, but the other matrix of the gated feed-forward layer is present"
        raise ProjectError("EXP002", message, "use a complete checkpoint, with all its shards")
    return state[name]


def drop_tied_decoder(state: Mapping[str, Tensor]) -> StateDict:
    """Drop the decoder, which must equal the embedding bit for bit and have no bias, or a bias of zeros.

    Raises `ProjectError` EXP003 if the decoder has other values.
    """
    decoder, bias = state.get(DECODER), state.get(DECODER_BIAS)
    if decoder is not None and not torch.equal(decoder, _embedding_weight(state)):
        raise _untied_decoder_error(f"{DECODER} differs from {EMBEDDING}")
    if bias is not None and bool(bias.any()):
        raise _untied_decoder_error(f"{DECODER_BIAS} is not zero")
    return {name: tensor for name, tensor in state.items() if name not in (DECODER, DECODER_BIAS)}


def _embedding_weight(state: Mapping[str, Tensor]) -> Tensor:
    if EMBEDDING not in state:
        message = f"{EMBEDDING} is missing, so the weights are not a NeoBERT's"
        raise ProjectError("EXP002", message, "use a NeoBERT checkpoint with its encoder")
    return state[EMBEDDING]


def _untied_decoder_error(reason: str) -> ProjectError:
    return ProjectError(
        "EXP003",
        f"the decoder cannot be tied to the embedding, because {reason}",
        "set model.tie_word_embeddings to false",
        place=DECODER,
    )


def untie_decoder(state: Mapping[str, Tensor]) -> StateDict:
    """Add an untied decoder to a tied state dict: a copy of the embedding, and a bias of zeros.

    Raises `ProjectError` EXP003 if the decoder is already untied.
    """
    embedding = _embedding_weight(state)
    if DECODER in state and not torch.equal(state[DECODER], embedding):
        message = "the decoder is already untied"
        raise ProjectError(
            "EXP003",
            message,
            "load the weights without conversion: `load_weights` reads both layouts",
            place=DECODER,
        )
    decoder = {DECODER: embedding.clone(), DECODER_BIAS: embedding.new_zeros(embedding.shape[0])}
    return {**state, **decoder}


def fork_to_hub(state: Mapping[str, Tensor]) -> StateDict:
    """Convert weights from the fork's layout to the published layout, with an untied decoder.

    Raises `ProjectError` EXP002 if a matrix is missing, and EXP003 if the decoder is already untied.
    """
    return untie_decoder(join_gates(state))


def hub_to_fork(state: Mapping[str, Tensor]) -> StateDict:
    """Convert weights to the fork's layout. Raises `ProjectError` EXP003 if the decoder cannot be tied."""
    return drop_tied_decoder(split_gates(state))
