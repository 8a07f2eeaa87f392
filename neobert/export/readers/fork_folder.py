"""Reader of the fork's layout: a reimplementation, because the fork is not on PyPI.

Shapes: S row length, D hidden size, N heads, H head size.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

DISTRIBUTIONS = ("torch", "safetensors", "transformers")


def read(folder: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Return token ids, attention mask, hidden states and logits, padded; each text is encoded alone."""
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    weights = load_file(Path(folder, "model.safetensors"))
    batch = PreTrainedTokenizerFast.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    hidden = torch.zeros(*ids.shape, config["hidden_size"])
    for row, length in enumerate(mask.sum(1)):
        hidden[row, :length] = encode(ids[row, :length], weights, config)
    logits = hidden @ weights["decoder.weight"].T
    outputs = {"input_ids": ids, "attention_mask": mask, "last_hidden_state": hidden, "logits": logits}
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def encode(ids: Tensor, weights: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    """Return the hidden states [S, D] of one text with token ids [S]."""
    x = weights["model.encoder.weight"][ids]
    for number in range(config["num_hidden_layers"]):
        block = {
            name.split(".", 3)[3]: tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.transformer_encoder.{number}.")
        }
        x = x + attend(norm(x, block, "attention_norm", config), block, config["num_attention_heads"])
        y = norm(x, block, "ffn_norm", config)
        gated = F.silu(y @ block["ffn.w1.weight"].T) * (y @ block["ffn.w2.weight"].T)
        x = x + gated @ block["ffn.w3.weight"].T
    return norm(x, {name.removeprefix("model."): w for name, w in weights.items()}, "layer_norm", config)


def norm(x: Tensor, weights: dict[str, Tensor], name: str, config: dict[str, Any]) -> Tensor:
    """Apply the RMSNorm with this name to x [..., D]."""
    return F.rms_norm(x, (x.shape[-1],), weights[f"{name}.weight"], config["norm_eps"])


def attend(x: Tensor, block: dict[str, Tensor], num_heads: int) -> Tensor:
    """Return the output [S, D] of bidirectional attention over x [S, D]."""
    q, k, v = (x @ block["qkv.weight"].T).unflatten(-1, (num_heads, 3, -1)).permute(2, 1, 0, 3)
    context = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
    return context.transpose(0, 1).flatten(1) @ block["wo.weight"].T


def rotate(x: Tensor) -> Tensor:
    """Apply rotary embeddings to interleaved pairs of x [N, S, H], at positions 0 to S - 1."""
    length, width = x.shape[-2:]
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
