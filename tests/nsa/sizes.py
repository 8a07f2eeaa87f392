"""Small models with native sparse attention, and packed rows for them."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.families.attention import SelectedBlocks
from neobert.families.backbone import Backbone, build_backbone
from neobert.probes.attention_suite import SpecialTokenIds

SPEC = SelectedBlocks(size=8, counts=4, window=11)
MODEL: dict[str, Any] = {
    "type": "nsa",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 32,
    "num_kv_heads": 2,
    "head_dim": 4,
    "intermediate_size": 48,
    "block_size": SPEC.size,
    "block_counts": SPEC.counts,
    "window_size": SPEC.window,
}
LENGTHS = (1, 37, 7, 8, 9, 63, 64, 65, 191)
"""Shorter and longer than a block, than the selected blocks, and by one token either way."""
ROWS, LONGEST = 128, max(LENGTHS)
WORLD = SimpleNamespace(device=torch.device("cpu"), compute_dtype=torch.float32, size=1)


def config_of(**changes: Any) -> RunConfig:
    """Return a run of the small model; `changes` are keys of the section `model`, or other sections."""
    sections = {name: each for name, each in changes.items() if isinstance(each, dict)}
    model = {name: each for name, each in changes.items() if name not in sections}
    values: dict[str, Any] = {
        "task": "causal",
        "model": MODEL | model,
        "dataset": {"max_seq_length": LONGEST},
        "datacollator": {"pack_sequences": True},
        "trainer": {"mixed_precision": "no", "torch_compile": False},
    }
    for name, each in sections.items():
        values[name] = values.get(name, {}) | each
    return from_dict(values)


def build(**changes: Any) -> Backbone:
    """Build the small model with seeded weights."""
    torch.manual_seed(3)
    return build_backbone(config_of(**changes), SpecialTokenIds(), ROWS, WORLD, "AutoModelForCausalLM", {})


def packed(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Return a packed row of random documents."""
    draw = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(1, ROWS, (sum(lengths),), generator=draw),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": bounds_of(lengths),
        "max_seqlen": max(lengths),
    }


def bounds_of(lengths: tuple[int, ...]) -> Tensor:
    """Return the bounds of documents; the last one is empty."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist(), sum(lengths)], dtype=torch.int32)


def queries_keys_values(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Return random q [T, 32, 4], k and v [T, 2, 4] and gates [T, 32, 3]."""
    draw = torch.Generator().manual_seed(1)
    heads = ((32, 4), (2, 4), (2, 4))
    q, k, v = (torch.randn(tokens, *each, generator=draw).to(dtype) for each in heads)
    return q, k, v, torch.rand(tokens, 32, 3, generator=draw).to(dtype)
