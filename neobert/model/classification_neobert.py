"""NeoBERT with a sequence classifier. Copied into every checkpoint folder.

Shapes: B rows, S row length, D hidden size.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .configuration_neobert import NeoBERTConfig
from .modeling_neobert import NeoBERT, NeoBERTPreTrainedModel
from .pooling import pool


class NeoBERTForSequenceClassification(NeoBERTPreTrainedModel):
    """The encoder with a classifier over one pooled vector a row (config.pooling: avg, cls or max)."""

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
    ) -> SequenceClassifierOutput:
        """Classify padded rows: logits [B, num_labels]. Arguments as for `NeoBERT`.

        labels: [B] classes; [B] floats for regression (one label); [B, num_labels] floats for many at once.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        pooled = self.dropout(pool(encoded.last_hidden_state, attention_mask, self.config.pooling))
        logits = self.classifier(self.dropout(torch.tanh(self.dense(pooled))))
        return SequenceClassifierOutput(
            loss=None if labels is None else _classification_loss(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )


def _classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Squared error for one label, one class a row for integer labels, independent labels for float rows."""
    logits = logits.to(torch.float32)
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.flatten(), labels.flatten().to(torch.float32))
    if labels.is_floating_point():
        return F.binary_cross_entropy_with_logits(logits, labels.to(torch.float32))
    return F.cross_entropy(logits, labels.flatten())
