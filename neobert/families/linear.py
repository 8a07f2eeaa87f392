"""Linear layers of a model's blocks: their sizes, and the matrices in their weights. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

WHOLE, QKV, QKV_BY_HEAD, GATE_UP = "whole", "qkv", "qkv_by_head", "gate_up"
PROJECTION, HEADS, STACKED_QKV = "projection", "heads", "stacked_qkv"


class Layout(NamedTuple):
    """Layout of a weight, which Muon splits into matrices (`neobert.optim.fused_rows`).

    Attributes:
        name: kind of its matrices. whole; projection: q, k or v alone; qkv: the three of head 0, then of
            head 1; stacked_qkv: the three one after the other; gate_up: two one after the other.
        num_heads: heads of a projection, or of each of the three.
    """

    name: str
    num_heads: int = 1


class Linear(NamedTuple):
    """A linear layer: its features, and the layout of its weight."""

    inputs: int
    outputs: int
    layout: Layout = Layout(WHOLE)
