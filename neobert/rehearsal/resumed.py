"""A run that was killed goes on: what it came back with, and what its next steps did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neobert.rehearsal.fresh import Finish, Say
from neobert.rehearsal.script import Script
from neobert.rehearsal.trace import Trace, draw_from_generators, state_digests
from neobert.rehearsal.trials import WorstCase, wait_for_checkpoint
from neobert.training.loop.hooks import Hook, StepReport
from neobert.training.state.trainer import Trainer


@dataclass
class Resumed:
    """Follows a run from the checkpoint that it goes on from, for as many steps as are compared."""

    script: Script
    finish: Finish
    say: Say
    seen: dict[str, Any] = field(default_factory=dict)

    def attach(self, trainer: Trainer) -> Sequence[Hook]:
        """Sum up what was loaded."""
        self.start = trainer.progress.step
        self.say(f"resumed at step {self.start}")
        self.seen |= {"start": self.start, "state": state_digests(trainer)}
        draw_from_generators()  # as the unbroken run did between its save and its next step
        if trainer.config.trainer.torch_compile:
            WorstCase(trainer).run(trainer)  # compilers draw numbers too
        self.trace = Trace(trainer)
        self.trace.start()
        return [Hook(name="rehearsal", act=self.look, every=1)]

    def look(self, trainer: Trainer, _report: StepReport) -> None:
        """Note a step; at the last one, wait for its checkpoint and hand over."""
        step = trainer.progress.step
        if step == self.start:
            return
        self.trace.note(trainer)
        if step == self.start + self.script.compared:
            wait_for_checkpoint(trainer.checkpoints / str(step))
            end = {"trace": self.trace.lines(), "state_at_end": state_digests(trainer)}
            self.finish(trainer, self.seen | end)
