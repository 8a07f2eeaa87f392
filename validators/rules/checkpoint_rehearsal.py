"""Checkpoint rules: saves and resumes of the rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rehearsal_parts import early_end_reason, require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule

if TYPE_CHECKING:
    from validators.facts_rehearsal import RehearsalFacts, ResumeTrialFacts


TRIALS = 2
GPU_TOLERANCE = 1e-3
"""Relative tolerance of a loss a few steps after gradients were summed by atomics in another order."""
PATH = "trainer.resume_from_checkpoint"
HINT = "do not train with this setup; report this as a bug: checkpoints are not restored exactly"


def _require_resume_trials(facts: Facts) -> tuple[ResumeTrialFacts, ...]:
    resumes = require_rehearsal(facts).resumes
    if len(resumes) < TRIALS:
        message = f"the run was resumed only {counted(len(resumes), 'time')} ({TRIALS} needed)"
        raise CannotTellError(early_end_reason(facts) or message)
    return resumes


@rehearsal_rule("CKP006", "checkpoint-not-what-was-saved", severity=Severity.FAIL)
def _checkpoint_not_what_was_saved(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A checkpoint that does not restore the exact state that was saved.

    ## What it does
    Checksums all weights and optimizer moments at a save of the rehearsal, kills the run, verifies and loads
    the checkpoint in a new process, and compares the checksums.

    ## Why is this bad?
    An optimizer moment that is restored as zero, or in another precision, costs thousands of steps and is
    easily mistaken for bad luck.

    ## Example
    ```text
    the optimizer's second moments are missing from the checkpoint
    ```

    ## Use instead
    ```text
    save every tensor of the state, under its name and in its precision
    ```
    """
    for trial in _require_resume_trials(facts):
        if trial.altered_tensors:
            names = ", ".join(trial.altered_tensors)
            yield Violation(
                "trainer.save_steps",
                f"{len(trial.altered_tensors)} of {trial.num_tensors} tensors saved at step "
                f"{trial.expected_start} changed on loading: {names}",
                HINT,
            )
        if not trial.num_tensors:
            yield Violation("trainer.save_steps", "the checkpoint contains no tensors", HINT)


@rehearsal_rule("CKP009", "resume-goes-elsewhere", severity=Severity.FAIL)
def _resume_goes_elsewhere(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A resumed run that differs from the uninterrupted run.

    ## What it does
    Kills the rehearsal and resumes it from its newest checkpoint, twice, and compares the next steps with
    the uninterrupted run's bit by bit: samples, masks, learning rate, random generators and loss. On
    a GPU, where kernels may sum gradients in any order, the loss of the first step after the kill must be
    identical and later ones equal to within 0.1 %.

    ## Why is this bad?
    A resume that restarts the data trains twice on its beginning and never on its end; one that loses the
    scheduler state repeats the warm-up. Each restart adds to the error, and no log line shows it.

    ## Example
    ```text
    the position in the data is not saved: after every restart the run reads epoch 0 again
    ```

    ## Use instead
    ```text
    save the data cursor, the scheduler and the generators of every rank in the checkpoint
    ```
    """
    rehearsal = require_rehearsal(facts)
    for number, trial in enumerate(_require_resume_trials(facts)):
        for fault in _resume_trial_faults(rehearsal, trial, is_first=number == 0):
            yield Violation(PATH, f"resumed at step {trial.start}: {fault}", HINT)


def _resume_trial_faults(
    rehearsal: RehearsalFacts, trial: ResumeTrialFacts, *, is_first: bool
) -> Iterator[str]:
    if trial.start != trial.expected_start:
        yield f"the newest checkpoint is at step {trial.expected_start}"
        return
    if not trial.compared_steps:
        yield "no step could be compared with the uninterrupted run"
    if trial.differing:
        yield f"the next {counted(trial.compared_steps, 'step')} differ in {', '.join(trial.differing)}"
    if trial.first_loss_difference is None or trial.largest_loss_difference is None:
        yield "the loss of the next steps is not finite"
        return
    tolerance = 0.0 if rehearsal.device == "cpu" else GPU_TOLERANCE
    if trial.first_loss_difference > (0.0 if is_first else tolerance):
        yield f"the loss of the first step has a relative difference of {trial.first_loss_difference:.2g}"
    elif trial.largest_loss_difference > tolerance:
        yield f"the loss of later steps has a relative difference of {trial.largest_loss_difference:.2g}"


@rehearsal_rule("CKP011", "saves-that-queue", severity=Severity.WARN)
def _saves_that_queue(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Saves that take longer than the interval between them.

    ## What it does
    Times a save of the rehearsal until the checkpoint is read back, and compares it with the duration of
    `trainer.save_steps` steps at the measured pace. Exempt: a run with a single save.

    ## Why is this bad?
    A save is written in the background while training continues, and only one can be in flight. If the next
    one is due earlier, training is blocked for the rest of it at every save: a run of one day takes two, and
    the GPUs wait for a disk.

    ## Example
    ```yaml
    trainer:
      save_steps: 5   # at 0.8 s per step: 4 s; a checkpoint takes 7.3 s
    ```

    ## Use instead
    ```yaml
    trainer:
      save_steps: 500
    ```
    """
    save_s = require_measured(require_rehearsal(facts).save_s, facts, "the time of a save")
    steps, step_time_s = plan.save_interval_steps.value, plan.step_time_s.value
    if plan.num_saves.value == 1 or save_s <= steps * step_time_s:
        return
    enough = int(save_s / step_time_s) + 1
    faster = "set trainer.output_dir to a faster disk"
    fits = enough < plan.max_steps.value
    hint = f"set trainer.save_steps to {enough} or more, or {faster}" if fits else faster
    yield Violation(
        "trainer.save_steps",
        f"a save took {save_s:,.2f} s, but the next one is due after {steps * step_time_s:,.2f} s "
        f"({counted(steps, 'step')}): training is blocked at each save",
        hint,
    )
