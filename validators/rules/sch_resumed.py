"""SCH: learning rate before and after a resume."""

from __future__ import annotations

from math import isclose

from neobert.plan import Plan
from neobert.plan.schedule import learning_rate_at
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.ckp_host import why_not_resumed

SAME_RATE = 0.01
"""Relative. A smaller change has no visible effect on a loss curve."""


@rule(
    "SCH005",
    "resumed-at-another-rate",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("resume",),
    inapplicable=why_not_resumed,
)
def resumed_at_another_rate(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A learning rate that jumps when the run resumes.

    ## What it does
    Compares the learning rate of the first resumed step under the schedule of the checkpoint
    and under the schedule of this run. Warns about a difference above 1 %.

    ## Why is this bad?
    A schedule that follows `trainer.max_steps` changes at every step when that key is raised. A run that had
    decayed to its floor resumes at many times that rate, without a warm-up: the loss rises, and the gain of
    the decay is lost.

    ## Example
    ```text
    max_steps raised from 700 to 1,400, resumed at step 700: learning rate 6.0e-05 -> 3.3e-04
    ```

    ## Use instead
    ```yaml
    model:
      pretrained_checkpoint: runs/first/checkpoints/700   # a new run with its own warm-up
    ```
    """
    resume = facts.resume
    assert resume is not None
    if not resume.is_verified or resume.learning_rate is None:
        return
    before = resume.learning_rate
    now = learning_rate_at(resume.step, run.config.optimizer.lr, plan.schedule)
    if not isclose(before, now, rel_tol=SAME_RATE):
        yield Violation(
            "trainer.resume_from_checkpoint",
            f"the learning rate of step {resume.step + 1:,} changes from {before:.3g} (the checkpoint's "
            f"schedule) to {now:.3g} (this run's, with decay to step {plan.schedule.decay_end:,})",
            "restore trainer.max_steps, the scheduler section and optimizer.lr of the checkpoint, or set "
            "model.pretrained_checkpoint to start a new run from its weights",
        )
