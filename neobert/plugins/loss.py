"""Loss of a plug-in, in place of the loss of a task with labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neobert.data.batches.targets import IGNORED
from neobert.families.backbone import Backbone
from neobert.model.attention import record_kernels
from neobert.objectives.labelled import LabelledObjective, Predictions
from neobert.objectives.objective import Objective
from neobert.plugins.loading import Plugin


def with_loss(objective: Objective, plugin: Plugin) -> Objective:
    """Return the objective with the loss of a plug-in. Raises `PluginError` for a task without labels."""
    if type(objective) is not LabelledObjective:
        raise plugin.invalid_result_error("needs a task with labels of texts or words")
    return PluggedObjective(objective.backbone, PluggedLoss(plugin))


@dataclass(frozen=True)
class PluggedLoss:
    """Sums the losses that a user-defined function returns for the labels of a microbatch."""

    plugin: Plugin

    def __call__(self, logits: Tensor, labels: Tensor, num_targets: int) -> Tensor:
        """Return the summed loss of logits [..., L] over the labels [...] that are not -100 or NaN.

        `num_targets` is the number of these labels. Raises `PluginError` unless each gets one loss.
        """
        is_score = labels.is_floating_point()
        rows, labels = logits.flatten(0, -2), labels.flatten()
        if not num_targets:
            return rows.sum() * 0
        is_label = ~labels.isnan() if is_score else labels != IGNORED
        # The number is known, so that no step waits for the device.
        places = torch.nonzero_static(is_label, size=num_targets).squeeze(1)
        rows, labels = rows[places], labels[places]
        losses = self.plugin(rows.squeeze(-1) if is_score else rows, labels)
        if not isinstance(losses, Tensor) or losses.shape != labels.shape:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise self.plugin.invalid_result_error(
                f"returned {shape} for {num_targets} labels, not a loss for each label"
            )
        if not losses.is_floating_point():
            dtype = str(losses.dtype).removeprefix("torch.")
            raise self.plugin.invalid_result_error(f"returned losses of {dtype}, not of floating point")
        return losses.float().sum()


class PluggedObjective(LabelledObjective):
    """Objective of labelled texts or words with the loss of a plug-in."""

    def __init__(self, backbone: Backbone, loss: PluggedLoss) -> None:
        super().__init__(backbone)
        self.loss = loss

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch, fp32; ignored labels are -100 or NaN."""
        with record_kernels(self.attention_used):
            return self.loss(self.logits(inputs), labels, num_targets)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Predictions:
        """Return the summed loss, the logits and the labels of a microbatch."""
        logits = self.logits(inputs)
        return Predictions(self.loss(logits, labels, num_targets), logits, labels)
