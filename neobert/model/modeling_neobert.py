"""NeoBERT (arXiv:2502.19587) and its heads, for training and for loading. Copied into checkpoints.

Shapes: B rows, S row length, T packed tokens, D hidden size, N texts (rows or packed segments), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple

# Older transformers copy the files that are named here, and not those that these import in turn.
from .attention import restarting_bounds
from .backends import choose_backend  # noqa: F401
from .configuration_neobert import NeoBERTConfig
from .encoder import NeoBERT
from .flash4 import flash4_varlen  # noqa: F401
from .flex import flex_in_documents  # noqa: F401
from .heads import classification_loss, infer_problem_type, pool, span_loss, token_loss
from .kernel_table import ATTENTION  # noqa: F401
from .layers import EncoderBlock  # noqa: F401
from .pretrained import NeoBERTPreTrainedModel

# transformers saves the module of a class and what it imports: so the encoder takes the heads with it.
NeoBERT.__module__ = __name__


class NeoBERTLMHead(NeoBERTPreTrainedModel):
    """NeoBERT with a masked-language-model head: an untied decoder with bias, or a tied one without."""

    accepts_loss_kwargs = True  # makes transformers' Trainer pass num_items_in_batch
    fresh_parts = ("decoder.",)
    _tied_weights_keys: ClassVar[dict[str, str]] = {"decoder.weight": "model.encoder.weight"}

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=not config.tie_word_embeddings)
        self.post_init()

    def check_tying(self, info: Mapping[str, Iterable[str]], requested: bool | None) -> None:
        """Raise ValueError if the config ties a separate decoder, or the caller unties a shared one."""
        if requested is False and "decoder.weight" in info["missing_keys"]:
            raise ValueError(
                "the checkpoint has no decoder of its own, but tie_word_embeddings=False requires one: "
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
        """Replace the decoder."""
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
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Score the vocabulary at every token: logits [B, S, V] or [T, V].

        Arguments as for `NeoBERT`; labels have the shape of input_ids, and the loss is the mean over
        those that are not -100 (zero if all are). With num_items_in_batch, the number of labels of all
        accumulated microbatches, the sum is divided by that number, so that the losses of a step add up
        to its mean.
        """
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, cu_seqlens, max_seqlen,
            return_dict=True, **kwargs,
        )  # fmt: skip
        logits = self.decoder(encoded.last_hidden_state)
        return MaskedLMOutput(
            loss=None if labels is None else token_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


class _TaskModel(NeoBERTPreTrainedModel):
    """Base class of the fine-tuning models: the encoder with a new head."""

    accepts_loss_kwargs = True
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"^decoder\."]

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = NeoBERT(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the head from a normal distribution; the encoder initializes its own weights."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.classifier_init_range)
            nn.init.zeros_(module.bias)


class _PooledModel(_TaskModel):
    """Base class of classifiers over one pooled vector per text (config.pooling: avg, cls or max)."""

    fresh_parts = ("dense.", "classifier.")

    def __init__(self, config: NeoBERTConfig, num_scores: int) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, num_scores)
        self.post_init()

    def pool_output(self, hidden: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
        """Pool the encoder's output to one vector [N, D] per row, or per segment of a packed row."""
        return pool(hidden, attention_mask, self.config.pooling, cu_seqlens)

    def features(self, pooled: Tensor) -> Tensor:
        """Return the classifier's inputs [N, D] for pooled vectors [N, D]."""
        return self.dropout(torch.tanh(self.dense(self.dropout(pooled))))

    def classify(self, pooled: Tensor) -> Tensor:
        """Return logits [N, num_labels] for pooled vectors [N, D]."""
        return self.classifier(self.features(pooled))


class NeoBERTForSequenceClassification(_PooledModel):
    """NeoBERT with a sequence-classification or regression head on the pooled output."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config, config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Classify rows, or the segments of a packed row: logits [N, num_labels]. Arguments as for `NeoBERT`.

        Segments are given by cu_seqlens, or by position_ids that restart in a single row without a mask.
        labels: [N] classes; [N] floats for regression (one label); [N, num_labels] floats for multi-label.
        config.problem_type selects the loss; if it is None, the first labels set it, and it is saved.
        num_items_in_batch as for `NeoBERTLMHead`; with several labels per row, each label is an item.
        """
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        bounds = kwargs.get("cu_seqlens", kwargs.get("cu_seq_lens_q"))
        if bounds is None and attention_mask is None and position_ids is not None:
            bounds = _restart_bounds(position_ids)
        logits = self.classify(self.pool_output(encoded.last_hidden_state, attention_mask, bounds))
        if labels is not None and self.config.problem_type is None:
            self.config.problem_type = infer_problem_type(labels, self.num_labels)
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config.problem_type, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


def _restart_bounds(position_ids: Tensor) -> Tensor | None:
    """Return the segment bounds of a single row whose positions restart.

    None for one text, or for several rows. Raises `ValueError` in a compiled graph.
    """
    if position_ids.dim() > 1 and len(position_ids) > 1:
        return None
    if torch.compiler.is_compiling():
        # The number of segments is data, and so would be the shape of the logits.
        raise ValueError(
            "a compiled classifier cannot count the texts of position_ids: "
            "pass cu_seq_lens_q for packed texts, or an attention_mask for one text"
        )
    return restarting_bounds(position_ids.flatten())


class NeoBERTForMultipleChoice(_PooledModel):
    """NeoBERT with a multiple-choice head: one score per choice."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config, 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Score the C choices of each question: input_ids and attention_mask [B, C, S], logits [B, C].

        labels: [B], the index of the correct choice.
        """
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        encoded = self.model(input_ids.flatten(0, 1), mask, return_dict=True, **kwargs)
        logits = self.classify(self.pool_output(encoded.last_hidden_state, mask, None)).view(
            input_ids.shape[:2]
        )
        return MultipleChoiceModelOutput(
            loss=None if labels is None else token_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


class NeoBERTForTokenClassification(_TaskModel):
    """NeoBERT with a token-classification head."""

    fresh_parts = ("classifier.",)

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Classify tokens: logits [B, S, num_labels] or [T, num_labels]. Arguments as for `NeoBERTLMHead`."""
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.classifier(self.dropout(encoded.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else token_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


class NeoBERTForQuestionAnswering(_TaskModel):
    """NeoBERT with a span-classification head for extractive question answering."""

    accepts_loss_kwargs = False
    fresh_parts = ("qa_outputs.",)

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Return start and end logits [B, S] each. Arguments as for `NeoBERT`.

        start_positions, end_positions: [B] token indices; an index outside the row is ignored.
        """
        encoded = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        start, end = self.qa_outputs(encoded.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start, end, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
