"""Prefill and training with native sparse attention against a dense model of the same widths, by row length.

    python benchmarks/sparse_attention.py [--lengths 2048 8192 32768] [--small] [--output DIR]

In turns on one device: the model of profile `nsa-smoke`, and a Llama with its layers, heads and widths. Every
row is one document. Prefill is a forward pass without gradients up to the last hidden states; training adds
the backward pass, without head and optimizer. Rates are tokens per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from measurement import write_measurement
from peers.turns import Step, free_memory, measure

from neobert.config import from_dict
from neobert.families.backbone import Backbone, build_backbone
from neobert.probes.attention_suite import Markers
from profiles.registry import resolve_run

MIB = 2**20
ROWS = 32_768
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 8, "intermediate_size": 96, "block_size": 8,
    "block_counts": 4, "window_size": 16,
}  # fmt: skip


def sections(folder: Path, *, is_small: bool) -> dict[str, dict[str, Any]]:
    """Return the section `model` of both sides."""
    model = resolve_run("nsa-smoke", [], []).config.model
    sparse = {name: getattr(model, name) for name in ("num_heads", "num_kv_heads", *SMALL)}
    sparse |= SMALL if is_small else {}
    names = {"num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads"}
    own = ("block_size", "block_counts", "window_size")
    dense = {names.get(name, name): value for name, value in sparse.items() if name not in own}
    dense |= {"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": 2**20}
    (folder / "config.json").write_text(json.dumps(dense), encoding="utf-8")
    return {"sparse": {"type": "nsa"} | sparse, "dense": {"type": "hf", "config": str(folder)}}


def built(section: Mapping[str, Any], length: int, device: torch.device) -> Backbone:
    """Build a model with seeded weights on the device."""
    is_cuda = device.type == "cuda"
    config = from_dict(
        {
            "task": "causal",
            "model": dict(section),
            "dataset": {"max_seq_length": length},
            "datacollator": {"pack_sequences": True},
            "trainer": {"mixed_precision": "bf16" if is_cuda else "no", "torch_compile": False},
        }
    )
    torch.manual_seed(0)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    world: Any = SimpleNamespace(device=device, compute_dtype=dtype, size=1)
    tokenizer: Any = Markers()
    backbone = build_backbone(config, tokenizer, ROWS, world, "AutoModelForCausalLM", {})
    backbone.model.to(device)
    return backbone


def step_of(backbone: Backbone, length: int, tokens: int, device: torch.device, *, trains: bool) -> Step:
    """Return a pass over rows of this length."""
    lengths = [length] * max(1, tokens // length)
    ids = torch.randint(1, ROWS, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    inputs = {
        "input_ids": ids.to(device),
        "position_ids": torch.arange(length, device=device).repeat(len(lengths)),
        "cu_seqlens": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device),
        "max_seqlen": length,
        "attention_mask": None,
    }

    def step() -> int:
        half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
        with half, torch.set_grad_enabled(trains):
            loss = backbone.hidden(inputs).float().square().mean()
        if trains:
            loss.backward()
            backbone.model.zero_grad(set_to_none=True)
        return len(ids)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32_768])
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of a pass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side in each round")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a CPU")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Any] = {}
    ratio = 0.0
    with tempfile.TemporaryDirectory() as name:
        models = sections(Path(name), is_small=chosen.small)
        for length in sorted(chosen.lengths):
            for kind in ("prefill", "train"):
                sides = {side: built(section, length, device) for side, section in models.items()}
                steps = {
                    side: step_of(each, length, chosen.tokens, device, trains=kind == "train")
                    for side, each in sides.items()
                }
                rates = measure(steps, chosen.rounds, chosen.seconds, lambda _rates: None)
                medians = {side: statistics.median(values) for side, values in rates.items()}
                kernels = {side: each.attention for side, each in sides.items()}
                found[f"{length} {kind}"] = {"median": medians, "rounds": rates, "kernels": kernels}
                print(f"{length:7,} {kind:8}", *(f"{side} {rate:>10,.0f}" for side, rate in medians.items()))
                del sides, steps
                free_memory()
                if kind == "prefill":
                    ratio = round(medians["sparse"] / medians["dense"], 3)
                if chosen.output:
                    path = chosen.output / "sparse-attention.json"
                    write_measurement(path, ratio, "sparse / dense, prefill of the longest rows", None, found)


if __name__ == "__main__":
    main()
