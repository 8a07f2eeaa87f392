"""CKP, the part that needs the machine: room, a file system that keeps promises, what is there already."""

from __future__ import annotations

from pathlib import PurePath
from shlex import quote

from neobert.plan import Plan
from neobert.plan.saves import TREE_MARGIN, kept_checkpoints
from profiles.registry import ResolvedRun
from validators.facts import FOREIGN_TREE, DiskFacts, Facts, ResumeFacts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

NEVER = "never"
FILES_PER_CHECKPOINT = 64
TRIAL_MIB = 4
QUOTA_HINT = "raise the quota (`quota -s`, `lfs quota`), make room, or choose another folder"
UNCHECKED_HINT = "compare the quota with the size that is needed: `quota -s`, or `lfs quota` on Lustre"
VOLATILE = ("tmpfs", "ramfs", "overlay", "overlayfs")


@rule("CKP004", "no-room-for-checkpoints", severity=Severity.FAIL, level=Level.HOST, needs=("disk",))
def no_room_for_checkpoints(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A disk that the run's checkpoints do not fit on.

    ## What it does
    Compares free space and free inodes below `trainer.output_dir` with the most checkpoints that lie there at
    once, and a fifth more. Those are the newest that are kept, the best and the multiples where they are
    asked for, the one that a session goes on from, one that was set aside when an earlier step was gone on
    from, and the new one, which is complete before the oldest goes. Checkpoints of the run that goes on count
    as room. The bytes of one checkpoint are also reserved for a moment, in a file without a name: a quota
    refuses them where the free space is reported. Where the file system cannot reserve (NFS before 4.2, some
    cluster file systems), a production run gets a warning that no quota was checked.

    ## Why is this bad?
    A full disk is met at a save, hours into the run, and the save is what was wanted.

    ## Example
    ```text
    3 checkpoints of 2,811 MiB are kept, and 9,000 MiB are free
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
        there = f", of which {held_mib:,.0f} are there" if held_mib else ""
        yield Violation(
            "trainer.output_dir",
            f"{disk.free_mib:,} MiB are free in {disk.path}, {tree.value:,.0f} are needed{there}: "
            f"{tree.reason}",
            "make room, choose another folder, or lower trainer.save_total_limit",
        )
    else:
        yield from _refused_reservation(run, plan, disk)
    checkpoints = kept_checkpoints(run.config.trainer, plan.num_saves.value) + 1
    inodes = int(checkpoints * FILES_PER_CHECKPOINT * TREE_MARGIN)
    if disk.free_inodes < inodes:
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} has {disk.free_inodes:,} inodes free; checkpoints need {inodes:,}",
            "remove small files there, or choose another folder",
        )


def _refused_reservation(run: ResolvedRun, plan: Plan, disk: DiskFacts) -> Violations:
    path, one = "trainer.output_dir", f"{plan.checkpoint_mib.value:,.0f} MiB, the size of one checkpoint"
    if disk.reservation == "refused":
        message = f"{disk.free_mib:,} MiB are free in {disk.path}, but {one}, cannot be reserved"
        yield Violation(path, f"{message}: {disk.reservation_error}", QUOTA_HINT)
    elif disk.reservation == "unsupported" and run.is_production:
        message = f"no quota was checked: {disk.path} ({disk.filesystem}) cannot reserve {one}"
        yield Violation(path, f"{message} ({disk.reservation_error})", UNCHECKED_HINT, Severity.WARN)


def _held_mib(run: ResolvedRun, plan: Plan, facts: Facts) -> float:
    """What a run that goes on has on the disk already: those checkpoints make room for the next ones."""
    output = facts.output
    if output is None or run.config.trainer.resume_from_checkpoint == NEVER:
        return 0.0
    there = len(output.checkpoint_steps) + output.num_set_aside
    return min(there, kept_checkpoints(run.config.trainer, plan.num_saves.value)) * plan.checkpoint_mib.value


@rule("CKP005", "unsafe-output-dir", severity=Severity.FAIL, level=Level.HOST, needs=("disk",))
def unsafe_output_dir(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A file system that loses checkpoints, or cannot take them.

    ## What it does
    Judges a real write, sync and rename in the run directory, and the type of its file system. Memory and
    container layers (tmpfs, overlay) fail a production run, whose checkpoints have to outlive the
    container; for a smoke run, and on a machine without the GPUs that the profile requires, they are a
    warning: such a machine does not hold the checkpoints.

    ## Why is this bad?
    What lies in a container's layer is gone with the container, and a rename that is not atomic leaves half a
    checkpoint under the name of a whole one.

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
    promises = (
        ("written to", disk.is_writable),
        ("renamed in", disk.rename_works),
        ("synced", disk.fsync_works),
    )
    broken = [promise for promise, holds in promises if not holds]
    if broken and disk.free_mib >= TRIAL_MIB:  # with less the trial itself had no room, which is CKP004's
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} cannot be {' or '.join(broken)}: {disk.error or 'no reason given'}",
            "choose a folder on a local or network disk that you may write to",
        )
    if disk.filesystem in VOLATILE:
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} is on {disk.filesystem}, which does not outlive the container or the machine",
            "choose a folder on a mounted disk",
            None if _trains_here(run, facts) else Severity.WARN,
        )


def _trains_here(run: ResolvedRun, facts: Facts) -> bool:
    """Whether a production run would train on the machine that the facts describe."""
    needs_gpus = run.device == "cuda"
    return run.is_production and not (needs_gpus and facts.gpus is None)


def why_not_resumed(run: ResolvedRun, plan: Plan) -> str:
    """Return why rules about a resume do not apply; empty where the run resumes."""
    return "the run does not resume" if run.config.trainer.resume_from_checkpoint == NEVER else ""


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
    """A checkpoint to resume from that is missing, damaged, of another model, or beyond the end.

    ## What it does
    The named checkpoint exists and its manifest verifies, model and data are those of the run, and its
    step is below `trainer.max_steps`. `auto` may find nothing and start afresh; it may not find nothing but
    broken ones. Of newer ones that it passes by for the newest that verifies, this warns.

    ## Why is this bad?
    A trainer that starts afresh when its checkpoint is missing throws away the run that it was asked to
    go on with.

    ## Example
    ```text
    neobert-launch train --resume runs/first/checkpoints/40000   # a folder without a manifest
    ```

    ## Use instead
    ```text
    neobert-launch train --resume auto
    ```
    """
    resume, path = facts.resume, "trainer.resume_from_checkpoint"
    assert resume is not None
    if not resume.exists:
        if resume.selector != "auto":
            yield Violation(path, f"{resume.target or resume.selector} does not exist", _way_on(resume))
        return
    if not resume.is_verified:
        yield Violation(path, f"{resume.target} does not verify: {resume.reason}", _way_on(resume))
        return
    if resume.structural_differences:
        others = "; ".join(resume.structural_differences)
        hint = "give the run back what it had, or start another one in another trainer.output_dir"
        yield Violation(path, f"{resume.target} is another run's: {others}", hint)
    max_steps = run.config.trainer.max_steps
    if resume.step >= max_steps:
        yield Violation(
            path,
            f"{resume.target} is at step {resume.step:,}, not before the end at {max_steps:,}",
            "raise trainer.max_steps",
        )
    for passed_by in resume.passed_by:
        message = f"checkpoint {passed_by}; the run goes on from {resume.step:,} and does those steps again"
        yield Violation(path, message, "restore it from a copy first, to lose nothing", Severity.WARN)


def _start_from(checkpoint: str) -> str:
    return f"start from its weights: model.pretrained_checkpoint: {checkpoint}"


def _way_on(resume: ResumeFacts) -> str:
    """Name what can be gone on from; auto may lead to what this user may not read, or to nothing."""
    if resume.exists and FOREIGN_TREE in PurePath(resume.target).parts:
        return f"set trainer.resume_from_checkpoint to never, and {_start_from(resume.target)}"
    if resume.way_out:
        return resume.way_out
    if resume.alternative:
        return f"go on from the newest that verifies: --resume {quote(resume.alternative)}"
    if not resume.exists:
        return "name a checkpoint folder that is there"
    return "restore one from a copy, let this user read it, or begin in another trainer.output_dir"


@rule(
    "CKP008",
    "occupied-output-dir",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("output",),
    waivable=False,
)
def occupied_output_dir(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run directory that already holds something, without a word on what to do with it.

    ## What it does
    Asks that `trainer.output_dir` is new or empty. Where it holds a run, the new one has to resume it, or to
    say `trainer.overwrite_output_dir: true`, which moves the old content aside. A run that starts from a
    checkpoint of another folder does not resume the one that is there. A folder that holds anything else is
    somebody's, and is refused in any case; of `model_checkpoints/<step>`, as other NeoBERT trainers write it,
    the hint says how to start from its weights.

    ## Why is this bad?
    Two runs in one directory overwrite each other's checkpoints, and their metrics read as one.

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
    resumes_it = trainer.resume_from_checkpoint != NEVER and not (facts.resume and facts.resume.is_elsewhere)
    if not output.exists or (output.is_directory and output.is_empty):
        return
    if not output.is_directory:
        yield Violation(path, f"{output.path} is a file", "name a folder")
    elif not is_run and output.foreign_checkpoint:
        message = f"{output.path} holds {FOREIGN_TREE} of another trainer, which cannot be resumed here"
        yield Violation(path, message, f"name a new folder, and {_start_from(output.foreign_checkpoint)}")
    elif not is_run:
        yield Violation(path, f"{output.path} holds files that are no run's", "name a new folder")
    elif not (resumes_it or trainer.overwrite_output_dir):
        steps = ", ".join(map(str, output.checkpoint_steps)) or "none"
        yield Violation(
            path,
            f"{output.path} holds another run (checkpoints: {steps})",
            "name a new folder, set trainer.resume_from_checkpoint to auto (`train --resume auto`), "
            "or set trainer.overwrite_output_dir",
        )
