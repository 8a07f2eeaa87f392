"""What happens between steps: a list of hooks, each with its cadence. Their order is the order of effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neobert.training.state.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Something to do after certain steps, on all ranks.

    Attributes:
        name: what its time is counted as.
        every: steps between two times; 0: only at the start or at the end.
        at_start: also before the first step.
        at_end: also after the last step.
    """

    name: str
    act: Callable[[Trainer], None]
    every: int
    at_start: bool = False
    at_end: bool = True

    def is_due(self, step: int, max_steps: int) -> bool:
        """Tell whether the hook runs after this step."""
        if step == 0:
            return self.at_start
        if step == max_steps:
            return self.at_end
        return self.every > 0 and step % self.every == 0
