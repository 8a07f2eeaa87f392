"""CKP: disk space, file system, existing content of the run directory and the checkpoint to resume from."""

from __future__ import annotations

from pathlib import PurePath
from shlex import quote
from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plan.saves import TREE_MARGIN, kept_checkpoints
from profiles.registry import ResolvedRun
from validators.facts import FOREIGN_TREE, Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

if TYPE_CHECKING:
    from validators.facts_host import DiskFacts, ResumeFacts

NEVER = "never"
CONTINUE = "trainer.continue_from"
FILES_PER_CHECKPOINT = 64
TRIAL_MIB = 4
QUOTA_HINT = (
    "raise the quota (`quota -s`, `lfs quota`) or the limit on files (`ulimit -f`), free disk space, or set "
    "trainer.output_dir to another disk"
)
UNCHECKED_HINT = "compare your quota with that size: `quota -s`, or `lfs quota` on Lustre"
VOLATILE = ("tmpfs", "ramfs", "overlay", "overlayfs")


@rule("CKP004", "no-room-for-checkpoints", severity=Severity.FAIL, level=Level.HOST, needs=("disk",))
def no_room_for_checkpoints(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Not enough disk space for the run's checkpoints.

    ## What it does
    Compares free space and free inodes below `trainer.output_dir` with the most checkpoints that exist at
    once, plus 20 %. Those are the newest ones that are kept, the best and the periodically kept ones if
    configured, the one that a session resumed from, one that was set aside when the run resumed from an
    earlier step, and the new one, which is complete before the oldest is deleted. Existing checkpoints of a
    resumed run count as available space. The size of one checkpoint is also reserved briefly in an unnamed
    file: a quota can reject it even if free space is reported. If the file system cannot reserve space (NFS
    before 4.2, some cluster file systems), a production run gets a warning that no quota was checked.

    ## Why is this bad?
    A full disk shows up at a save, hours into the run, and loses that save.

    ## Example
    ```text
    3 checkpoints of 2,811 MiB are kept, but only 9,000 MiB are free
    ```

    ## Use instead
    ```text
    a trainer.output_dir with 20,237 MiB, or a lower trainer.save_total_limit
    ```
    """
    disk = facts.disk
    assert disk is not None
    tree, held_mib = plan.checkpoint_tree_mib, _held_mib(run, plan, facts)
    if disk.free_mib < tree.value - held_mib:
        held = f", {held_mib:,.0f} MiB of them are already used" if held_mib else ""
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} has {disk.free_mib:,} MiB free, checkpoints need {tree.value:,.0f} MiB{held}: "
            f"{tree.reason}",
            "free disk space, set trainer.output_dir to another disk, or lower trainer.save_total_limit",
        )
    else:
        yield from _refused_reservation(run, plan, disk)
    checkpoints = kept_checkpoints(run.config.trainer, plan.num_saves.value) + 1
    inodes = int(checkpoints * FILES_PER_CHECKPOINT * TREE_MARGIN)
    if disk.free_inodes < inodes:
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} has {disk.free_inodes:,} free inodes, checkpoints need {inodes:,}",
            "delete small files on that file system, or set trainer.output_dir to another disk",
        )


def _refused_reservation(run: ResolvedRun, plan: Plan, disk: DiskFacts) -> Violations:
    path, one = "trainer.output_dir", f"{plan.checkpoint_mib.value:,.0f} MiB, the size of one checkpoint"
    if disk.reservation == "refused":
        message = f"{disk.path} has {disk.free_mib:,} MiB free, but {one}, cannot be reserved"
        yield Violation(path, f"{message}: {disk.reservation_error}", QUOTA_HINT)
    elif disk.reservation == "unsupported" and run.is_production:
        message = f"quota not checked: {disk.path} ({disk.filesystem}) cannot reserve {one}"
        yield Violation(path, f"{message} ({disk.reservation_error})", UNCHECKED_HINT, Severity.WARN)


def _held_mib(run: ResolvedRun, plan: Plan, facts: Facts) -> float:
    """Return the MiB in checkpoints of a resumed run: they are deleted as new ones are saved."""
    output = facts.output
    if output is None or run.config.trainer.resume_from_checkpoint == NEVER:
        return 0.0
    existing = len(output.checkpoint_steps) + output.num_set_aside
    return (
        min(existing, kept_checkpoints(run.config.trainer, plan.num_saves.value)) * plan.checkpoint_mib.value
    )


@rule("CKP005", "unsafe-output-dir", severity=Severity.FAIL, level=Level.HOST, needs=("disk",))
def unsafe_output_dir(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A file system that cannot store checkpoints, or loses them.

    ## What it does
    Tries a write, a sync and a rename in the run directory, and checks the type of its file system. Memory
    and container layers (tmpfs, overlay) fail a production run, whose checkpoints must outlive the
    container. For a smoke run, and on a machine without the GPUs that the profile requires, they are a
    warning, because such a machine does not train the run.

    ## Why is this bad?
    A container's layer is deleted with the container, and a rename that is not atomic leaves half a
    checkpoint under the name of a complete one.

    ## Example
    ```yaml
    trainer:
      output_dir: /dev/shm/run
    ```

    ## Use instead
    ```yaml
    trainer:
      output_dir: /scratch/run
    ```
    """
    disk = facts.disk
    assert disk is not None
    operations = (
        ("written to", disk.is_writable),
        ("renamed in", disk.rename_works),
        ("synced", disk.fsync_works),
    )
    failed = [operation for operation, works in operations if not works]
    if failed and disk.free_mib >= TRIAL_MIB:  # with less space the trial itself fails: CKP004 reports that
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} cannot be {' or '.join(failed)}: {disk.error or 'no reason given'}",
            "set trainer.output_dir to a folder on a local or network disk with write permission",
        )
    if disk.filesystem in VOLATILE:
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} is on {disk.filesystem}, which is lost with the container or at reboot",
            "set trainer.output_dir to a folder on a mounted disk",
            None if _trains_here(run, facts) else Severity.WARN,
        )


def _trains_here(run: ResolvedRun, facts: Facts) -> bool:
    """Return whether a production run would train on the machine that the facts describe."""
    needs_gpus = run.device == "cuda"
    return run.is_production and not (needs_gpus and facts.gpus is None)


def why_not_resumed(run: ResolvedRun, plan: Plan) -> str:
    """Return why rules about a resume do not apply; empty if the run may resume."""
    trainer = run.config.trainer
    starts_fresh = trainer.resume_from_checkpoint == NEVER and trainer.continue_from is None
    return "the run does not resume" if starts_fresh else ""


@rule(
    "CKP007",
    "broken-resume-target",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("resume",),
    waivable=False,
    inapplicable=why_not_resumed,
)
def broken_resume_target(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A checkpoint to resume from that is missing, damaged, from another model, or past the last step.

    ## What it does
    Requires that the named checkpoint exists, that its manifest verifies, that model and data match the run
    (model and optimizer, for `trainer.continue_from`), and that its step is below `trainer.max_steps`. `auto`
    may find no checkpoint and start from scratch, but not if all checkpoints are damaged. Warns about newer
    checkpoints that were skipped because they do not verify.

    ## Why is this bad?
    A trainer that starts from scratch when its checkpoint is missing discards the run that it was supposed
    to resume.

    ## Example
    ```text
    neobert-launch train --resume runs/first/checkpoints/40000   # a folder without a manifest
    ```

    ## Use instead
    ```text
    neobert-launch train --resume auto
    ```
    """
    resume = facts.resume
    assert resume is not None
    path = CONTINUE if resume.is_continued else "trainer.resume_from_checkpoint"
    if not resume.exists:
        if resume.selector != "auto" or resume.is_continued:
            yield Violation(path, f"{resume.target or resume.selector} does not exist", _resume_hint(resume))
        return
    if not resume.is_verified:
        yield Violation(path, f"{resume.target} failed verification: {resume.reason}", _resume_hint(resume))
        return
    if resume.structural_differences:
        differences = "; ".join(resume.structural_differences)
        hint = "restore these keys, or start a new run in another trainer.output_dir"
        yield Violation(path, f"{resume.target} belongs to a different run: {differences}", hint)
    max_steps = run.config.trainer.max_steps
    if resume.step >= max_steps:
        yield Violation(
            path,
            f"{resume.target} is at step {resume.step:,}, trainer.max_steps is {max_steps:,}",
            _hint_past_the_end(resume),
        )
    for skipped in resume.passed_by:
        message = f"checkpoint {skipped}; the run resumes from step {resume.step:,} and repeats those steps"
        yield Violation(
            path, message, "to keep those steps, restore the checkpoint from a copy", Severity.WARN
        )


@rule(
    "CKP016",
    "resumed-with-other-numerics",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("resume",),
    inapplicable=why_not_resumed,
)
def resumed_with_other_numerics(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that resumes a checkpoint which was trained with other settings.

    ## What it does
    Lists the keys of optimizer, precision, regularization and initial weights whose values differ from those
    in the checkpoint. SCH005 compares the learning rate; other data or another model are rejected (CKP007).

    ## Why is this bad?
    With `trainer.resume_from_checkpoint: auto`, a run file that was edited for a new run continues the old
    one, with its weights and its history: the result is neither of the two experiments.

    ## Example
    ```text
    optimizer.weight_decay: 0.1 in the checkpoint, 0.01 in this run
    ```

    ## Use instead
    ```yaml
    trainer:
      output_dir: runs/second   # the new settings from the first step
    ```
    """
    resume = facts.resume
    assert resume is not None
    if resume.numeric_differences:
        yield Violation(
            "trainer.resume_from_checkpoint",
            f"{resume.target} was trained with other settings: {'; '.join(resume.numeric_differences)}",
            "restore these keys, or set another trainer.output_dir for a new run",
        )


def _hint_past_the_end(resume: ResumeFacts) -> str:
    """Name both ways on from a run that has ended; another run's checkpoint does not show that."""
    if resume.is_continued:
        return "raise trainer.max_steps, which counts the steps of the continued run too"
    if resume.is_elsewhere:
        return "raise trainer.max_steps, or resume from an earlier checkpoint"
    return (
        "this run has ended: raise trainer.max_steps to continue it, or set another trainer.output_dir for a "
        "new run"
    )


def _start_from(checkpoint: str) -> str:
    return f"set model.pretrained_checkpoint to {checkpoint} to start from its weights"


def _resume_hint(resume: ResumeFacts) -> str:
    """Name a checkpoint that can be resumed; `auto` may find only unreadable ones, or none."""
    if resume.exists and FOREIGN_TREE in PurePath(resume.target).parts:
        return f"set trainer.resume_from_checkpoint to never, and {_start_from(resume.target)}"
    if resume.way_out:
        return resume.way_out
    if resume.is_continued:
        another = f", such as {quote(resume.alternative)}" if resume.alternative else ""
        return f"set {CONTINUE} to a run directory or a checkpoint folder{another}"
    if resume.alternative:
        return f"resume from the newest verified checkpoint: --resume {quote(resume.alternative)}"
    if not resume.exists:
        return "set trainer.resume_from_checkpoint to an existing checkpoint folder"
    return "restore a checkpoint from a copy, fix its permissions, or set another trainer.output_dir"


def why_not_continued(run: ResolvedRun, plan: Plan) -> str:
    """Return why rules about a continued run do not apply; empty if the run may continue another one."""
    return "the run does not continue another run" if run.config.trainer.continue_from is None else ""


@rule(
    "CKP012",
    "continued-outside-the-plateau",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("resume",),
    inapplicable=why_not_continued,
)
def continued_outside_the_plateau(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that continues another one from its warm-up or its decay.

    ## What it does
    Compares the step of the checkpoint in `trainer.continue_from` with the plateau of that run's schedule:
    from the end of the warm-up to the beginning of the decay. Also requires `trainer.max_epochs` to be null,
    because it counts from the first step of the weights.

    ## Why is this bad?
    The decay is where a run settles on its text. Weights that have decayed on the old text have settled
    there, and at the low rate that is left they learn little of the new one.

    ## Example
    ```yaml
    trainer:
      continue_from: runs/first/checkpoints/1000   # the decay began at step 800
    ```

    ## Use instead
    ```yaml
    trainer:
      continue_from: runs/first/checkpoints/800
    ```
    """
    resume = facts.resume
    assert resume is not None
    if not (resume.is_continued and resume.is_verified):
        return
    if (
        resume.stable_steps is not None
        and not resume.stable_steps[0] <= resume.step <= resume.stable_steps[1]
    ):
        first, last = resume.stable_steps
        if first < last:
            message = f"{resume.target} is outside the plateau of its run (steps {first:,} to {last:,})"
            hint = f"set {CONTINUE} to a checkpoint of these steps (see trainer.save_keep_every)"
        else:
            message = f"{resume.target}: its run has no plateau, the learning rate decays from step {last:,}"
            hint = f"remove {CONTINUE}, and {_start_from(resume.target)}"
        yield Violation(CONTINUE, message, hint)
    if run.config.trainer.max_epochs is not None:
        message = "trainer.max_epochs counts the steps before the checkpoint too, which read other text"
        yield Violation(
            "trainer.max_epochs", message, "set trainer.max_epochs to null, and trainer.max_steps"
        )


@rule(
    "CKP008",
    "occupied-output-dir",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("output",),
    waivable=False,
)
def occupied_output_dir(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run directory that is not empty, with no setting that allows its use.

    ## What it does
    Requires `trainer.output_dir` to be new or empty. If it holds a run, the new run must resume it or set
    `trainer.overwrite_output_dir: true`, which moves the old content aside. A run that starts from a
    checkpoint in another folder does not resume the one in this folder. A folder with any other content is
    always rejected; for `model_checkpoints/<step>`, as other NeoBERT trainers write it, the hint shows how to
    start from those weights.

    ## Why is this bad?
    Two runs in one directory overwrite each other's checkpoints and mix their metrics.

    ## Example
    ```yaml
    trainer:
      output_dir: runs/first   # holds step 40000
      resume_from_checkpoint: never
    ```

    ## Use instead
    ```yaml
    trainer:
      output_dir: runs/second
    ```
    """
    output, trainer = facts.output, run.config.trainer
    assert output is not None
    path, is_run = "trainer.output_dir", bool(output.config_digest or output.checkpoint_steps)
    starts_elsewhere = facts.resume and facts.resume.is_elsewhere and not facts.resume.is_continued
    resumes_it = trainer.resume_from_checkpoint != NEVER and not starts_elsewhere
    if not output.exists or (output.is_directory and output.is_empty):
        return
    if not output.is_directory:
        yield Violation(path, f"{output.path} is a file, not a folder", f"set {path} to a folder")
    elif not is_run and output.foreign_checkpoint:
        message = f"{output.path} holds {FOREIGN_TREE} of another trainer, which cannot be resumed"
        hint = f"set {path} to a new folder, and {_start_from(output.foreign_checkpoint)}"
        yield Violation(path, message, hint)
    elif not is_run:
        message = f"{output.path} holds files that do not belong to a run"
        yield Violation(path, message, f"set {path} to a new folder")
    elif not (resumes_it or trainer.overwrite_output_dir):
        steps = ", ".join(map(str, output.checkpoint_steps)) or "none"
        yield Violation(
            path,
            f"{output.path} holds another run (checkpoints: {steps})",
            f"set {path} to a new folder, set trainer.resume_from_checkpoint to auto "
            "(`train --resume auto`), or set trainer.overwrite_output_dir to true",
        )
