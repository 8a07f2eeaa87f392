"""CKP, the part that a rehearsal does: save, load, kill, go on; and how long a save takes."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.plan import Plan
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import RehearsalFacts, ResumeTrialFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, cut_short, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

TRIALS = 2
GPU_TOLERANCE = 1e-3
"""Relative, of a loss a few steps behind gradients that atomics have summed in another order."""
PATH = "trainer.resume_from_checkpoint"
HINT = "do not train: a run that does not go on as it was loses more with every restart"


def _trials(facts: Facts) -> tuple[ResumeTrialFacts, ...]:
    found = rehearsal_of(facts)
    if len(found.resumes) < TRIALS:
        told = f"the run was resumed {len(found.resumes)} times; {TRIALS} are needed"
        raise CannotTellError(cut_short(facts) or told)
    return found.resumes


@rule("CKP006", "checkpoint-not-what-was-saved", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def checkpoint_not_what_was_saved(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A checkpoint that does not bring back what was saved, to the last bit.

    ## What it does
    Sums up every weight and every moment of the optimizer at a save of the rehearsal, kills the run, has a
    new process verify and load the checkpoint, and compares.

    ## Why is this bad?
    What cannot be loaded was not saved. A moment that comes back as zero, or in another precision, costs
    thousands of steps, and looks like bad luck.

    ## Example
    ```text
    the optimizer's second moments are not among what is saved
    ```

    ## Use instead
    ```text
    every tensor of the state, under its name, in its precision
    ```
    """
    for trial in _trials(facts):
        if trial.altered_tensors:
            names = ", ".join(trial.altered_tensors)
            yield Violation(
                "trainer.save_steps",
                f"of {trial.num_tensors} tensors that were saved at step {trial.expected_start} some came "
                f"back otherwise: {names}",
                HINT,
            )
        if not trial.num_tensors:
            yield Violation("trainer.save_steps", "the checkpoint held no tensor at all", HINT)


@rule("CKP009", "resume-goes-elsewhere", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def resume_goes_elsewhere(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A resumed run that does not do what the unbroken one did.

    ## What it does
    Kills the rehearsal and goes on from its newest checkpoint, twice, and holds the next steps of each
    against those of the unbroken run: the samples and their masks, the learning rate, the random generators
    and the loss, to the last bit. On a GPU, whose kernels may add gradients in any order, the loss of the
    first step after the kill has to be the same, later ones within a thousandth.

    ## Why is this bad?
    A resume that starts the data again trains twice on the beginning and never on the end; one that forgets
    the schedule warms up in the middle. Each restart adds to it, and no log line shows it.

    ## Example
    ```text
    the position in the data is not saved: after every restart the run reads epoch 0 again
    ```

    ## Use instead
    ```text
    the cursor, the schedule and the generators of every rank in the checkpoint
    ```
    """
    found = rehearsal_of(facts)
    for number, trial in enumerate(_trials(facts)):
        for fault in _faults(found, trial, is_first=number == 0):
            yield Violation(PATH, f"resumed at step {trial.start}: {fault}", HINT)


def _faults(found: RehearsalFacts, trial: ResumeTrialFacts, *, is_first: bool) -> Iterator[str]:
    if trial.start != trial.expected_start:
        yield f"the newest checkpoint is that of step {trial.expected_start}"
        return
    if not trial.compared_steps:
        yield "no step was compared"
    if trial.differing:
        yield f"its next {trial.compared_steps} steps have other {', '.join(trial.differing)}"
    if trial.first_loss_difference is None or trial.largest_loss_difference is None:
        yield "the loss of its next steps is no finite number"
        return
    tolerance = 0.0 if found.device == "cpu" else GPU_TOLERANCE
    if trial.first_loss_difference > (0.0 if is_first else tolerance):
        yield f"the loss of its first step differs by {trial.first_loss_difference:.2g} of it"
    elif trial.largest_loss_difference > tolerance:
        yield f"the loss of its next steps differs by up to {trial.largest_loss_difference:.2g} of it"


@rule("CKP011", "saves-that-queue", severity=Severity.WARN, level=Level.REHEARSAL, needs=NEEDS)
def saves_that_queue(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Saves that follow each other faster than the disk takes them.

    ## What it does
    Times a save of the rehearsal, until the checkpoint was read back, and compares it with the steps between
    two saves: `trainer.save_steps` of the pace that was measured. A run of one save has none to wait for.

    ## Why is this bad?
    A save is written beside training, and one is in flight at most. Where the next one is due before it has
    ended, training stands still for the rest of it, at every save: a run of a day takes two, and the GPUs
    wait for a disk.

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
    save_s = measured(rehearsal_of(facts).save_s, facts, "the time of a save")
    steps, step_time_s = plan.save_interval_steps.value, plan.step_time_s.value
    if plan.num_saves.value == 1 or save_s <= steps * step_time_s:
        return
    enough = int(save_s / step_time_s) + 1
    faster = "write to a faster disk: trainer.output_dir"
    fits = enough < run.config.trainer.max_steps
    hint = f"set trainer.save_steps to {enough} or more, or {faster}" if fits else faster
    yield Violation(
        "trainer.save_steps",
        f"a save took {save_s:,.2f} s, and the next one is due after {steps * step_time_s:,.2f} s, "
        f"{counted(steps, 'step')}: training waits for each",
        hint,
    )
