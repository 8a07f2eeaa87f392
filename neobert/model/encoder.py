"""NeoBERT encoder without heads. Copied into every checkpoint folder.

Shapes: B rows, S row length, T packed tokens, K segments, D hidden size, N heads, V vocabulary, L blocks.
Padded input is [B, S] with an attention_mask; packed input is flat, [T] or [1, T], with cu_seqlens [K+1].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from .attention import (
    Attend,
    RegisteredAttention,
    eager_attention,
    enter_layer,
    normalize_mask,
    packed_attention,
    padded_attention,
    positions_in_segments,
    registered_mask,
    restarting_bounds,
    same_segment_mask,
)
from .backends import choose_backend, current_environment
from .configuration_neobert import NeoBERTConfig
from .kernel_table import ATTENTION
from .layers import EncoderBlock, build_norm, compute_rotation
from .pretrained import NeoBERTPreTrainedModel

OWN_ATTENTION = (None, "eager", "sdpa")
"""Values of `attn_implementation` for which this model's own kernels run."""

PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Names of the bounds of packed segments in transformers."""


class NeoBERT(NeoBERTPreTrainedModel):
    """NeoBERT encoder without a head."""

    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^decoder\."]

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.positional_embedding = (
            None if config.rope else nn.Embedding(config.max_position_embeddings, config.hidden_size)
        )
        self.transformer_encoder = nn.ModuleList(
            EncoderBlock(config, number) for number in range(config.num_hidden_layers)
        )
        self.layer_norm = build_norm(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embedding [V, D]."""
        return self.encoder

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the token embedding."""
        self.encoder = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        token_type_ids: Tensor | None = None,  # noqa: ARG002
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode padded rows [B, S] or a packed row [T].

        Args:
            attention_mask: [B, S] or [B, 1 or N, 1 or S, S]; True or 1 attends, floats are added to scores.
            position_ids: positions of the tokens; by default they count from 0 in each row or segment. In a
                single row without a mask, positions that restart begin a new segment.
            cu_seqlens: int32 [K+1] bounds of the segments, from 0 to T; a repeated bound is an empty segment.
            max_seqlen: upper bound of the segment lengths; if omitted, it is computed from cu_seqlens.
            token_type_ids: accepted because BERT's tokenizers return them; not used.
            kwargs: `cu_seq_lens_q` and `max_length_q`, transformers' names of the bounds; all kwargs are
                passed to a registered attention function.

        Returns:
            last_hidden_state [B, S, D] or [T, D]; hidden_states: the embeddings and every block's output, the
            last one after the final norm; attentions: the softmax [B, N, S, S] of every block, padded
            rows only.

        Raises `ValueError` for rows or segments of more than max_position_embeddings tokens, and for
        arguments that exclude each other, such as cu_seqlens and attention_mask.
        """
        x = self._embed(input_ids, inputs_embeds)
        keeps_states = _value_or_default(output_hidden_states, self.config.output_hidden_states)
        probabilities: list[Tensor] | None = (
            [] if _value_or_default(output_attentions, self.config.output_attentions) else None
        )
        if cu_seqlens is None and "cu_seq_lens_q" in kwargs:
            cu_seqlens, max_seqlen = kwargs["cu_seq_lens_q"], kwargs.get("max_length_q")
            if max_seqlen is not None:
                self._check_length(max_seqlen)
        is_plain = cu_seqlens is None and attention_mask is None and not self._is_serving_engine
        if is_plain and position_ids is not None and len(x) == 1:
            cu_seqlens, attention_mask = _row_segments(position_ids)
        if cu_seqlens is None:
            attend = self._build_row_attend(x, attention_mask, probabilities, position_ids, kwargs)
            states = self.run_blocks(x, position_ids, attend, keeps_states)
        else:
            _refuse_packed_arguments(attention_mask, probabilities)
            states = self._run_packed(x, position_ids, cu_seqlens, max_seqlen, keeps_states, kwargs)
        return BaseModelOutput(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if keeps_states else None,
            attentions=None if probabilities is None else tuple(probabilities),
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds")
        x = self.encoder(input_ids) if inputs_embeds is None else inputs_embeds
        factor = self.config.embedding_multiplier
        return x if factor == 1.0 else x * factor

    @property
    def _registered_attention(self) -> str | None:
        """Name of the attention function registered in transformers, or None for the model's own kernels."""
        name = self.config._attn_implementation
        return None if name in OWN_ATTENTION else str(name)

    @property
    def _is_serving_engine(self) -> bool:
        """Return whether a serving engine's attention runs, which separates the texts of a single row."""
        return self._registered_attention is not None and not self._registered_attention.startswith(
            ("flash", "flex", "kernels-")
        )

    def _build_row_attend(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        probabilities: list[Tensor] | None,
        position_ids: Tensor | None,
        kwargs: Mapping[str, Any],
    ) -> Attend | RegisteredAttention:
        if x.dim() != 3:
            raise ValueError("a flat run of tokens needs cu_seqlens; padded rows have the shape [B, S]")
        # A graph for export has rows of any length, and a served row many texts.
        if not (torch.compiler.is_exporting() or self._is_serving_engine):
            self._check_length(x.shape[-2])
        if probabilities is not None:
            return eager_attention(normalize_mask(attention_mask), probabilities)
        if (name := self._registered_attention) is None:
            return padded_attention(normalize_mask(attention_mask))
        mask = registered_mask(name, attention_mask, x.dtype)
        return RegisteredAttention(name, mask, {**kwargs, "position_ids": position_ids})

    def _run_packed(
        self,
        x: Tensor,
        position_ids: Tensor | None,
        cu_seqlens: Tensor,
        max_seqlen: int | None,
        keeps: bool,
        kwargs: Mapping[str, Any],
    ) -> list[Tensor]:
        """Run the blocks over a flat run [T, D] or [1, T, D], with attention within segments.

        Returns the same states as `run_blocks`. Raises `ValueError` for several rows, or for long segments.
        """
        is_row = x.dim() == 3
        if is_row and x.shape[0] != 1:
            raise ValueError(f"packed input must be one flat row, got {x.shape[0]} rows")
        x = x.flatten(0, -2)
        num_tokens = x.shape[0]
        if position_ids is None:
            # Positions restart in each segment. Rotation is relative, so this matters to no rotary score, but
            # it keeps the angles of a segment the same bits wherever it is packed.
            position_ids = positions_in_segments(cu_seqlens, num_tokens)
        if max_seqlen is None:
            # This waits for the device; the trainer knows the bound on the host and passes it.
            max_seqlen = int(cu_seqlens.diff().max())
            self._check_length(max_seqlen)
        attend = self._build_packed_attend(x, cu_seqlens, int(max_seqlen), kwargs)
        states = self.run_blocks(x, position_ids.flatten(), attend, keeps)
        return [state[None] for state in states] if is_row else states

    def _build_packed_attend(
        self, x: Tensor, cu_seqlens: Tensor, max_seqlen: int, kwargs: Mapping[str, Any]
    ) -> Attend | RegisteredAttention:
        name = self._registered_attention
        if name is None or name == "flex_attention":  # whose registered function knows no segments
            backend = self._choose_packed_kernel(x) if name is None else "flex"
            return packed_attention(backend, cu_seqlens, max_seqlen, x.shape[0])
        cu_seqlens = cu_seqlens.to(torch.int32)
        bounds = dict(zip(PACKED, (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), strict=True))
        return RegisteredAttention(name, None, {**kwargs, **bounds})

    def _choose_packed_kernel(self, x: Tensor) -> str:
        """Return the kernel for packed rows; `auto` and `flash_attn_varlen` are resolved for this device."""
        requested = str(self.config.attn_backend)
        if requested in ATTENTION:
            return requested
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        return choose_backend(requested, current_environment(device, dtype, self.config.dim_head)).name

    def run_blocks(
        self, x: Tensor, position_ids: Tensor | None, attend: Attend | RegisteredAttention, keeps: bool
    ) -> list[Tensor]:
        """Run embeddings [..., D] through blocks and final norm; return a list that ends with the output.

        With `keeps` the list begins with the input of every block.
        """
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2], device=x.device)
        rotation = None
        if self.positional_embedding is None:
            rotation = compute_rotation(position_ids, self.config.dim_head, self.config.rope_theta)
        else:
            x = x + self.positional_embedding(position_ids)
        states = []
        for number, block in enumerate(self.transformer_encoder):
            if keeps:
                states.append(x)
            enter_layer(number)
            x = block(
                x, rotation, attend.for_block(block) if isinstance(attend, RegisteredAttention) else attend
            )
        return [*states, self.layer_norm(x)]

    def _check_length(self, length: int) -> None:
        """Raise ValueError for rows longer than max_position_embeddings.

        Only shapes are checked: position ids are on the device.
        """
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"a row of {length} tokens exceeds max_position_embeddings "
                f"({self.config.max_position_embeddings}): truncate it"
            )


def _value_or_default(value: bool | None, default: bool | None) -> bool:
    return bool(default if value is None else value)


def _row_segments(position_ids: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return (segment bounds, None) of one row, or in a compiled graph (None, mask).

    A compiled graph cannot contain the bounds, since their number depends on the data.
    """
    positions = position_ids.flatten()
    if torch.compiler.is_compiling():
        return None, same_segment_mask(positions)
    return restarting_bounds(positions), None


def _refuse_packed_arguments(attention_mask: Tensor | None, probabilities: list[Tensor] | None) -> None:
    """Raise ValueError for arguments that packed input would ignore or misuse."""
    if attention_mask is not None:
        raise ValueError("attention_mask is not supported for packed input: cu_seqlens isolates the segments")
    if probabilities is not None:
        raise ValueError("output_attentions is not supported for packed input: pass padded rows")
