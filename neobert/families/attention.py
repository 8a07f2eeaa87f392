"""Attention of a model: which keys a query attends to, and how scores are formed. Imports no torch.

The plan, the kernel table, the plain reference (`neobert.kernels.plain_attention`) and the probes read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from neobert.kernel_table import Feature


class Window(NamedTuple):
    """Sliding-window attention: in the blocks `layers`, a token attends to `reach` tokens on each side."""

    layers: tuple[int, ...]
    reach: int


class SelectedBlocks(NamedTuple):
    """Native sparse attention (arXiv:2502.11089): to means of blocks, to selected blocks, and to a window.

    Attributes:
        size: tokens of a block.
        counts: blocks that a token selects in a long document.
        window: tokens of the window, the token itself included.
    """

    size: int
    counts: int
    window: int

    def num_selected_blocks(self, length: int) -> int:
        """Return the number of blocks that the tokens of a document select, for one head of keys.

        Token t selects min(counts, t // size + 1).
        """
        blocks, rest = divmod(length, self.size)
        return length + self.size * self._num_earlier_blocks(blocks) + rest * min(self.counts - 1, blocks)

    def num_attended_pairs(self, length: int) -> int:
        """Return the number of (query, key) pairs of a document in one block, of all branches."""
        blocks, rest = divmod(length, self.size)
        compressed = self.size * blocks * (blocks - 1) // 2 + blocks * (rest + 1)
        own = (blocks * self.size * (self.size + 1) + rest * (rest + 1)) // 2
        window = min(self.window, length)
        sliding = window * (window + 1) // 2 + (length - window) * window
        return compressed + own + self.size * (self.num_selected_blocks(length) - length) + sliding

    def _num_earlier_blocks(self, blocks: int) -> int:
        """Return how many earlier blocks one token of each block selects, summed over the first blocks."""
        few = min(blocks, self.counts)
        return few * (few - 1) // 2 + (blocks - few) * (self.counts - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of a model, or of one of its blocks.

    Attributes:
        heads: query heads.
        kv_heads: heads of keys and values; query head i reads head i // (heads / kv_heads).
        head_size: channels of one head.
        direction: causal: a token attends to itself and to earlier tokens of its document only.
        window: sliding window of some blocks; None: every token attends to its whole document.
        scale: factor on the products of queries and keys; None: head_size ** -0.5.
        softcap: scores are softcap * tanh(score / softcap); None: unchanged.
        selected: native sparse attention; None: attention to every token within the window.
    """

    heads: int
    kv_heads: int
    head_size: int
    direction: Literal["bidirectional", "causal"] = "bidirectional"
    window: Window | None = None
    scale: float | None = None
    softcap: float | None = None
    selected: SelectedBlocks | None = None

    @property
    def is_causal(self) -> bool:
        """True if a token attends to no later token."""
        return self.direction == "causal"

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features that an attention kernel must have to compute this attention."""
        return tuple(self._required_features())

    def _required_features(self) -> Iterator[Feature]:
        if self.is_causal:
            yield "causal attention"
        if self.window is not None:
            yield "sliding windows"
        if self.kv_heads != self.heads:
            yield "grouped heads"
        if self.scale is not None:
            yield "a scale of its own"
        if self.softcap is not None:
            yield "a soft cap on scores"
        if self.selected is not None:
            yield "selected blocks"

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Number of earlier and later tokens that a token attends to; None: all of its document."""
        most = None if self.window is None else self.window.reach
        return most, 0 if self.is_causal else most

    def for_layer(self, number: int) -> AttentionSpec:
        """Return the attention of one block: without the window if the block has none."""
        has_window = self.window is not None and number in self.window.layers
        return self if has_window else replace(self, window=None)

    def num_weights(self, hidden_size: int) -> int:
        """Return the number of weights of the four projections of a block: q, k, v and output."""
        return 2 * hidden_size * self.head_size * (self.heads + self.kv_heads)

    def num_attended_pairs(self, length: int) -> int:
        """Return the number of (query, key) pairs of a document in one block, within its window."""
        if self.selected is not None:
            return self.selected.num_attended_pairs(length)
        sides = (length - 1 if most is None else min(most, length - 1) for most in self.reach)
        # Tokens near the end of a document reach fewer.
        return length + sum(length * side - side * (side + 1) // 2 for side in sides)
