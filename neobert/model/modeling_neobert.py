"""NeoBERT (arXiv:2502.19587): one class for training and for loading. Copied into every checkpoint folder.

Shapes: B rows, S row length, T packed tokens, K segments, D hidden size, N heads, V vocabulary, L blocks.
Padded input is [B, S] with an attention_mask; packed input is flat, [T] or [1, T], with cu_seqlens [K+1].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .attention import (
    Attend,
    eager_attention,
    enter_layer,
    normalize_mask,
    packed_attention,
    padded_attention,
    positions_in_segments,
)
from .backends import choose_backend, this_environment
from .configuration_neobert import NeoBERTConfig

# Older transformers copy the files that are named here, and no others: the kernels that the table loads, too.
from .flash4 import flash4_varlen  # noqa: F401
from .flex import flex_in_documents  # noqa: F401
from .kernel_table import ATTENTION
from .layers import EncoderBlock, build_norm, rotation_at
from .pooling import pool
from .pretrained import NeoBERTPreTrainedModel


class NeoBERT(NeoBERTPreTrainedModel):
    """The encoder."""

    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^decoder\."]

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.positional_embedding = (
            None if config.rope else nn.Embedding(config.max_position_embeddings, config.hidden_size)
        )
        self.transformer_encoder = nn.ModuleList(
            EncoderBlock(config) for _ in range(config.num_hidden_layers)
        )
        self.layer_norm = build_norm(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embedding [V, D]."""
        return self.encoder

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another token embedding in place."""
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
    ) -> BaseModelOutput:
        """Encode padded rows [B, S] or a packed run [T].

        Args:
            attention_mask: [B, S] or [B, 1 or N, 1 or S, S]; True or 1 attends, a float is added.
            position_ids: positions of the tokens; by default they count from 0 in each row or segment.
            cu_seqlens: int32 [K+1] bounds of the segments, from 0 to T; a repeated one is an empty segment.
            max_seqlen: no segment is longer than this; read from cu_seqlens where it is left out.
            token_type_ids: accepted because BERT's tokenizers return them; not used.

        Returns:
            last_hidden_state [B, S, D] or [T, D]; hidden_states: the embeddings and every block's output, the
            last one normed; attentions: the softmax [B, N, S, S] of every block, padded rows only.
        """
        x = self._embed(input_ids, inputs_embeds)
        keeps_states = _given(output_hidden_states, self.config.output_hidden_states)
        probabilities: list[Tensor] | None = (
            [] if _given(output_attentions, self.config.output_attentions) else None
        )
        if cu_seqlens is None:
            attend = _attend_rows(x, attention_mask, probabilities)
            states = self._run_blocks(x, position_ids, attend, keeps_states)
        else:
            _refuse_in_packed(attention_mask, probabilities, self.config.rope)
            states = self._run_packed(x, position_ids, cu_seqlens, max_seqlen, keeps_states)
        return BaseModelOutput(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if keeps_states else None,
            attentions=None if probabilities is None else tuple(probabilities),
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        return self.encoder(input_ids) if inputs_embeds is None else inputs_embeds

    def _run_packed(
        self, x: Tensor, position_ids: Tensor | None, cu_seqlens: Tensor, max_seqlen: int | None, keeps: bool
    ) -> list[Tensor]:
        """Run the blocks over a flat run [T, D] or [1, T, D], each segment by itself."""
        is_row = x.dim() == 3
        if is_row and x.shape[0] != 1:
            raise ValueError(f"packed input is one flat run; it came in {x.shape[0]} rows")
        x = x.flatten(0, -2)
        num_tokens = x.shape[0]
        if position_ids is None:
            # Positions restart in each segment. Rotation is relative, so this matters to no score, but it
            # keeps the angles of a segment the same bits wherever it is packed.
            position_ids = positions_in_segments(cu_seqlens, num_tokens)
        if max_seqlen is None:
            # This waits for the device; the trainer knows the bound on the host and passes it.
            max_seqlen = int(cu_seqlens.diff().max())
        attend = packed_attention(self._backend(x), cu_seqlens, max_seqlen, num_tokens)
        states = self._run_blocks(x, position_ids.flatten(), attend, keeps)
        return [state[None] for state in states] if is_row else states

    def _backend(self, x: Tensor) -> str:
        """Name the kernel for packed runs: the configured one, or of several the one for this device."""
        requested = str(self.config.attn_backend)
        if requested in ATTENTION:
            return requested
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        return choose_backend(requested, this_environment(device, dtype, self.config.dim_head)).name

    def _run_blocks(
        self, x: Tensor, position_ids: Tensor | None, attend: Attend, keeps: bool
    ) -> list[Tensor]:
        """Run embeddings [..., D] through blocks and final norm; return what is kept, the result last."""
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2], device=x.device)
        rotation = None
        if self.positional_embedding is None:
            rotation = rotation_at(position_ids, self.config.dim_head, self.config.rope_theta)
        else:
            _refuse_beyond(self.positional_embedding, x.shape[-2])
            x = x + self.positional_embedding(position_ids)
        states = []
        for number, block in enumerate(self.transformer_encoder):
            if keeps:
                states.append(x)
            enter_layer(number)
            x = block(x, rotation, attend)
        return [*states, self.layer_norm(x)]


def _given(value: bool | None, default: bool | None) -> bool:
    return bool(default if value is None else value)


def _attend_rows(x: Tensor, attention_mask: Tensor | None, probabilities: list[Tensor] | None) -> Attend:
    if x.dim() != 3:
        raise ValueError("a flat run of tokens needs cu_seqlens; padded rows have the shape [B, S]")
    mask = normalize_mask(attention_mask)
    return padded_attention(mask) if probabilities is None else eager_attention(mask, probabilities)


def _refuse_in_packed(attention_mask: Tensor | None, probabilities: list[Tensor] | None, rope: bool) -> None:
    """Refuse what would be ignored or wrong where cu_seqlens says which tokens belong together."""
    if attention_mask is not None:
        raise ValueError("packed input takes no attention_mask: cu_seqlens alone isolates its segments")
    if probabilities is not None:
        raise ValueError("output_attentions needs padded rows")
    if not rope:
        raise ValueError("packed input needs rotary positions (rope: true)")


def _refuse_beyond(positions: nn.Embedding, row_length: int) -> None:
    """Refuse rows that would look up positions which are not there: on a GPU that ends the process."""
    if row_length > positions.num_embeddings:
        raise ValueError(
            f"a row of {row_length} tokens has more than the {positions.num_embeddings} learned positions of "
            "this model (max_position_embeddings): truncate it"
        )


class NeoBERTLMHead(NeoBERTPreTrainedModel):
    """The encoder with its masked-language-model decoder: untied with a bias, or tied without."""

    accepts_loss_kwargs = True  # has transformers' Trainer pass num_items_in_batch
    fresh_parts = ("decoder.",)
    _tied_weights_keys: ClassVar[dict[str, str]] = {"decoder.weight": "model.encoder.weight"}

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=not config.tie_word_embeddings)
        self.post_init()

    def check_tying(self, info: Mapping[str, Iterable[str]], requested: bool | None) -> None:
        """Raise where the configuration ties a decoder of its own, or the caller unties a shared one."""
        if requested is False and "decoder.weight" in info["missing_keys"]:
            raise ValueError(
                "the checkpoint has no decoder of its own, and tie_word_embeddings=False asks for it: "
                "leave tie_word_embeddings out"
            )
        is_tied = self.decoder.weight is self.model.encoder.weight
        if self.config.tie_word_embeddings and (not is_tied or "decoder.bias" in info["unexpected_keys"]):
            raise ValueError(
                "the checkpoint has a decoder of its own, and the configuration ties it to the embedding: "
                "load it with tie_word_embeddings=False, or convert the checkpoint"
            )

    def get_output_embeddings(self) -> nn.Linear:
        """Return the decoder."""
        return self.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Put another decoder in place."""
        self.decoder = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        token_type_ids: Tensor | None = None,  # noqa: ARG002
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Score the vocabulary at every token: logits [B, S, V] or [T, V].

        Arguments as for `NeoBERT`; labels have the shape of input_ids, and the loss is the mean over
        those that are not -100 (zero where all are). With num_items_in_batch it is their sum over that
        number: the labels of all that is accumulated, so that the parts of a step add up to its mean.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            cu_seqlens,
            max_seqlen,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits = self.decoder(encoded.last_hidden_state)
        return MaskedLMOutput(
            loss=None if labels is None else _masked_mean_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


def _masked_mean_loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
    labels = labels.flatten()
    total = F.cross_entropy(logits.flatten(0, -2).to(torch.float32), labels, reduction="sum")
    return _share(total, (labels != -100).sum() if num_items is None else num_items)


def _share(total: Tensor, num_items: Tensor | int) -> Tensor:
    """Divide a sum by the number of labels that it is a part of the mean over; without any it is zero."""
    return total / torch.as_tensor(num_items, device=total.device).clamp(min=1)


class NeoBERTForSequenceClassification(NeoBERTPreTrainedModel):
    """The encoder with a classifier over one pooled vector a row (config.pooling: avg, cls or max)."""

    accepts_loss_kwargs = True
    fresh_parts = ("dense.", "classifier.")
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^decoder\."]

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = NeoBERT(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the head from a normal; the encoder draws its own weights."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.classifier_init_range)
            nn.init.zeros_(module.bias)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,  # noqa: ARG002
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutput:
        """Classify padded rows: logits [B, num_labels]. Arguments as for `NeoBERT`.

        labels: [B] classes; [B] floats for regression (one label); [B, num_labels] floats for many at once.
        config.problem_type says it where it is set; otherwise the first labels set it, and it is saved.
        num_items_in_batch as for `NeoBERTLMHead`; of several labels a row each is an item.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        pooled = pool(encoded.last_hidden_state, attention_mask, self.config.pooling)
        logits = self.classify(pooled)
        if labels is not None and self.config.problem_type is None:
            self.config.problem_type = _problem_of(labels, self.num_labels)
        loss = None
        if labels is not None:
            loss = _classification_loss(logits, labels, self.config.problem_type, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )

    def classify(self, pooled: Tensor) -> Tensor:
        """Score pooled vectors [N, D]: logits [N, num_labels]."""
        return self.classifier(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


def _problem_of(labels: Tensor, num_labels: int) -> str:
    """Name the task as transformers does, whose pipeline chooses the scores' function by it."""
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def _classification_loss(
    logits: Tensor, labels: Tensor, problem: str, num_items: Tensor | int | None
) -> Tensor:
    """One class a row, squared errors, or independent labels; in fp32: the mean, or a sum's share."""
    logits, reduction = logits.to(torch.float32), "mean" if num_items is None else "sum"
    if problem == "single_label_classification":
        loss = F.cross_entropy(logits, labels.flatten(), reduction=reduction)
    else:
        elementwise = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
        loss = elementwise(logits, labels.to(torch.float32).reshape(logits.shape), reduction=reduction)
    return loss if num_items is None else _share(loss, num_items)
