"""Optimizers that `transformers.Trainer` takes, beyond those that it builds by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

UNDER_ADAMW = ("embeddings", "decoder", "head")
"""Modules whose weights AdamW trains in spite of their two dimensions."""


class MuonAndAdamW(Optimizer):
    """`torch.optim.Muon` for the matrices of the blocks and fused AdamW for all other parameters.

    One optimizer for the Trainer and its schedule: the groups are those of both.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        adam_lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        momentum: float = 0.95,
    ) -> None:
        matrices, others = split(model)
        decayed = [each for each in others if each.ndim > 1]
        norms = [each for each in others if each.ndim < 2]
        is_gpu = next(model.parameters()).is_cuda
        self.parts: tuple[Optimizer, Optimizer] = (
            Muon(
                matrices,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                adjust_lr_fn="match_rms_adamw",
            ),
            AdamW(
                [{"params": decayed}, {"params": norms, "weight_decay": 0.0}],
                lr=adam_lr,
                weight_decay=weight_decay,
                betas=betas,
                fused=is_gpu,
            ),
        )
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share_groups()

    def _share_groups(self) -> None:
        """Make the groups those of the parts, so that a schedule reaches them."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {str(index): part.state_dict() for index, part in enumerate(self.parts)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for index, part in enumerate(self.parts):
            part.load_state_dict(state_dict[str(index)])
        self._share_groups()


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the matrices of the blocks, and all other parameters."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_of_a_block = not any(part in name.split(".") for part in UNDER_ADAMW)
        (matrices if parameter.ndim == 2 and is_of_a_block else others).append(parameter)
    return matrices, others
