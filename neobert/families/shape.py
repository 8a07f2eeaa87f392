"""Shape of a model, and its parameter, FLOP and byte counts. Imports no torch.

The plan, the rules and the trainer's FLOP counter read a `ModelShape`, never the section `model`, so they
work for every model family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from neobert.families.attention import AttentionSpec
from neobert.families.linear import Linear

FP32_BYTES = 4
BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers of parameters by purpose.

    Attributes:
        linear: weights of the blocks' matrix products.
        vectors: scales and shifts of norms, and biases of the blocks.
        embeddings: token table and further tables (learned positions, token types).
        decoder: everything between the last block and the logits that is not shared with the embedding.
    """

    linear: int
    vectors: int
    embeddings: int
    decoder: int

    @property
    def total(self) -> int:
        """Total number of parameters."""
        return self.linear + self.vectors + self.embeddings + self.decoder


class StoredActivations(NamedTuple):
    """Activation values that one block stores per token for the backward pass.

    Attributes:
        values: number of values in the compute type.
        fp32_values: number of values in fp32, regardless of the compute type.
        scores: attention scores in the compute type, per token of the segment.
        fp32_scores: attention scores in fp32, per token of the segment.
        is_bf16: the kernels support bf16 only.
        reason: description of the stored tensors, for reports.
    """

    values: int
    fp32_values: int
    reason: str
    scores: int = 0
    fp32_scores: int = 0
    is_bf16: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Size and structure of a model before it is built.

    Attributes:
        architecture: name of the model in reports: `NeoBERT`, `bert`.
        hidden_size: width of the residual stream.
        attention_width: channels of all query heads; usually hidden_size.
        feed_forward_width: width inside the feed-forward, per matrix.
        vocab_size: rows of the embedding.
        attention: heads, scale and windows of the blocks' attention, causal or bidirectional.
        positions: rotary; learned, for each position; relative: learned, for each distance.
        max_positions: longest sequence in tokens that the model accepts.
        linear_layers: linear layers of a block, by their name in it: each can have an adapter.
        decoder_products: weights of the products between the last block and the logits, per position.
        initial_rms: root mean square of the blocks' matrices before the first step.
        embedding_multiplier: factor on the token embeddings before the first block.
        kept: activations that a block stores, by implementation: `eager` (every family), `compiled`, and
            names of this project's kernels.
        rope_theta: base of rotary positions that the section sets; 0: it has no such key.
        first_position: index in the position embedding that a document's first token uses.
        position_products: products with relative positions, per token, over all blocks.
        adapter_parameters: weights of adapters next to the frozen encoder; 0: all weights are trained.
        trains_head: the head is trained; false next to adapters of a head of tokens.
        has_fp32_stream: the residual stream is in fp32 under autocast; false: in the compute type.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    attention_width: int
    feed_forward_width: int
    vocab_size: int
    attention: AttentionSpec
    positions: Literal["rotary", "learned", "relative"]
    max_positions: int
    linear_layers: Mapping[str, Linear]
    parameters: ParameterCount
    decoder_products: int
    initial_rms: float
    kept: Mapping[str, StoredActivations]
    embedding_multiplier: float = 1.0
    rope_theta: float = 0.0
    first_position: int = 0
    position_products: int = 0
    adapter_parameters: int = 0
    trains_head: bool = True
    has_fp32_stream: bool = True

    @property
    def trained_parameters(self) -> ParameterCount:
        """Trainable parameters: all, or only adapters (as `linear`) and a trained head."""
        if not self.adapter_parameters:
            return self.parameters
        return ParameterCount(self.adapter_parameters, 0, 0, self.parameters.decoder * self.trains_head)

    @property
    def head_flops(self) -> int:
        """FLOPs per weight of the head and scored position, forward and backward; see `product_flops`."""
        return 6 if self.trains_head else 4

    @property
    def product_flops(self) -> int:
        """FLOPs of the blocks' matrix products per token, forward and backward.

        6 per weight, or 4 for frozen weights, which need no weight gradient.
        """
        per_weight = 4 if self.adapter_parameters else 6
        return per_weight * self.parameters.linear + 6 * (self.adapter_parameters + self.position_products)

    def attended_pairs(self, lengths: Iterable[int]) -> int:
        """Return the number of (query, key) pairs in segments of these lengths, summed over all blocks."""
        # Counted while the GPU waits for the step: few blocks and few segments of a microbatch are distinct.
        blocks = {self.attention: self.num_layers}
        if self.attention.window is not None:
            blocks = Counter(map(self.attention.for_layer, range(self.num_layers)))
        segments = Counter(lengths)
        return sum(
            num_blocks * num_segments * attention.num_attended_pairs(length)
            for attention, num_blocks in blocks.items()
            for length, num_segments in segments.items()
        )

    def attention_flops(self, lengths: Iterable[int]) -> int:
        """Count the FLOPs of attention, forward and backward, over segments of these lengths.

        12 per channel and attended pair: two products forward, four backward. Pairs outside a sliding window,
        recomputation and padding are not counted.
        """
        return 12 * self.attention_width * self.attended_pairs(lengths)

    def block_flops(self, lengths: Iterable[int]) -> int:
        """Count the FLOPs of all blocks, forward and backward, over segments of these lengths."""
        lengths = tuple(lengths)
        return self.product_flops * sum(lengths) + self.attention_flops(lengths)

    def block_bytes(self, kernels: str, compute_bytes: int, segment: int) -> int:
        """Return the activation bytes per token that one block stores, in segments of `segment` tokens."""
        kept = self.kept[kernels]
        value_bytes = BF16_BYTES if kept.is_bf16 else compute_bytes
        values = kept.values + kept.scores * segment
        return value_bytes * values + FP32_BYTES * (kept.fp32_values + kept.fp32_scores * segment)

    def state_bytes(self, optimizer_values: int) -> int:
        """Return the bytes of fp32 weights and optimizer state in a checkpoint.

        A checkpoint with adapters contains both merged and frozen weights: merging cannot be undone exactly.
        """
        weights = self.parameters.total
        if self.adapter_parameters:
            weights += self.parameters.total + self.trained_parameters.total
        return FP32_BYTES * (weights + optimizer_values)
