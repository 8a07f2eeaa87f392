"""Masked language modelling over an encoder of transformers: padded rows, the head on the targets only.

Shapes: B rows, S row length, M targets, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from neobert.objectives import Objective
from neobert.objectives.masked_lm import Score, gather_targets, summed_loss

Head = Callable[[Tensor], Tensor]


class TransformersMaskedLM(Objective):
    """Sum the cross-entropy over the targets, in fp32.

    With `masked_logits_only` the head runs on the M targets, else on every token: the loss is the same.
    transformers' own loss is its mean over the targets of one microbatch.
    """

    def __init__(
        self, model: PreTrainedModel, head: Head, blocks: Sequence[nn.Module], *, masked_logits_only: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.masked_logits_only = masked_logits_only
        self.capacity = None
        self.eval_capacity = None
        self.attention_ran = {}
        self._head = head
        self._blocks = list(blocks)
        for number, block in enumerate(self._blocks):
            block.register_forward_pre_hook(self._note(number))

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch; inputs as the task gives them for padded rows."""
        return summed_loss(*self._scores(num_targets, labels, inputs))

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Score:
        """Return the summed loss and the hits. Arguments as for `forward`."""
        logits, labels = self._scores(num_targets, labels, inputs)
        return Score(summed_loss(logits, labels), (logits.argmax(-1) == labels).sum())

    def units(self) -> list[nn.Module]:
        """Return the blocks; embedding and head may share a matrix, and belong to the whole."""
        return list(self._blocks)

    def _scores(self, num_targets: int, labels: Tensor, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return logits [M, V] and labels [M]; [B * S, ...] without `masked_logits_only`."""
        hidden = self.model.base_model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            position_ids=inputs["position_ids"],
        ).last_hidden_state.flatten(0, -2)
        labels = labels.flatten()
        if self.masked_logits_only:
            hidden, labels = gather_targets(hidden, labels, num_targets)
        return self._head(hidden), labels

    def _note(self, number: int) -> Callable[..., None]:
        def note(_block: nn.Module, _arguments: Any) -> None:
            if torch.is_grad_enabled():
                self.attention_ran[number] = str(self.model.config._attn_implementation)

        return note
