"""Checkpoint rules: disk space, file system and existing content of the run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plan.saves import TREE_MARGIN, max_kept_checkpoints
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.run_dir import NEVER
from profiles.registry import ResolvedRun
from validators.facts import FOREIGN_TREE, Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, require_group, rule
from validators.rules.checkpoint_resume import hint_to_start_from

if TYPE_CHECKING:
    from validators.facts_host import DiskFacts

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
    disk = require_group(facts.disk)
    if facts.output and facts.output.obstacle:  # CKP008 reports it, and the space is that of no disk
        return
    tree, held_mib = plan.checkpoint_tree_mib, _existing_checkpoints_mib(run, plan, facts)
    if disk.free_mib < tree.value - held_mib:
        held = f" ({held_mib:,.0f} MiB of that in existing checkpoints)" if held_mib else ""
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} has {disk.free_mib:,} MiB free, but checkpoints need {tree.value:,.0f} MiB{held}: "
            f"{tree.reason}",
            "free disk space, set trainer.output_dir to another disk, or lower trainer.save_total_limit",
        )
    else:
        yield from _refused_reservation(run, plan, disk)
    checkpoints = max_kept_checkpoints(run.config.trainer, plan.num_saves.value) + 1
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


def _existing_checkpoints_mib(run: ResolvedRun, plan: Plan, facts: Facts) -> float:
    """Return the MiB of checkpoints that new checkpoints will replace; 0 if the run does not resume."""
    output = facts.output
    if output is None or run.config.trainer.resume_from_checkpoint == NEVER:
        return 0.0
    existing = len(output.checkpoint_steps) + output.num_set_aside
    kept = max_kept_checkpoints(run.config.trainer, plan.num_saves.value)
    return min(existing, kept) * plan.checkpoint_mib.value


@rule("CKP005", "unsafe-output-dir", severity=Severity.FAIL, level=Level.HOST, needs=("disk",))
def unsafe_output_dir(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A file system that cannot store checkpoints, or loses them.

    ## What it does
    Tries a write, a sync and a rename in the run directory, and checks the type of its file system. Memory
    and container layers (tmpfs, overlay) fail a production run, whose checkpoints must outlive the
    container, and so do temporary folders (/tmp, /var/tmp, /dev/shm, $TMPDIR). For a smoke run, and on a
    machine without the GPUs that the profile requires, a file system in memory is a warning, because such a
    machine does not train the run; a smoke run may be in a temporary folder.

    ## Why is this bad?
    A container's layer is deleted with the container, a temporary folder is cleaned at reboot, after some
    days or at the end of a job, and a rename that is not atomic leaves half a
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
    disk = require_group(facts.disk)
    operations = (
        ("written to", disk.is_writable),
        ("renamed in", disk.rename_works),
        ("synced", disk.fsync_works),
    )
    failed = [operation for operation, works in operations if not works]
    is_reported = facts.output and facts.output.obstacle  # by CKP008
    # With less space the trial itself fails: CKP004 reports that.
    if failed and disk.free_mib >= TRIAL_MIB and not is_reported:
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} cannot be {' or '.join(failed)}: {disk.error or 'no reason given'}",
            "set trainer.output_dir to a folder on a local or network disk with write permission",
        )
    if disk.filesystem in VOLATILE:
        yield Violation(
            "trainer.output_dir",
            f"{disk.path} is on {disk.filesystem}, which is lost with the container or at reboot",
            "set trainer.output_dir to a folder on a persistent disk",
            None if _trains_here(run, facts) else Severity.WARN,
        )
    elif disk.temporary_folder and run.is_production:
        yield Violation(
            "trainer.output_dir",
            f"{run.config.trainer.output_dir} is in {disk.temporary_folder}, whose files are deleted",
            "set trainer.output_dir to a folder on a persistent disk, outside of temporary folders",
            None if _trains_here(run, facts) else Severity.WARN,
        )


def _trains_here(run: ResolvedRun, facts: Facts) -> bool:
    """Return whether a production run would train on the machine that the facts describe."""
    needs_gpus = run.device == "cuda"
    return run.is_production and not (needs_gpus and facts.gpus is None)


@rule(
    "CKP008",
    "occupied-output-dir",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("output",),
    waivable=False,
)
def occupied_output_dir(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run directory that cannot be created, or is not empty, with no setting that allows its use.

    ## What it does
    Requires a `trainer.output_dir` in which files can be created, and that is new or empty. If it holds a
    run, the new run must resume it or set `trainer.overwrite_output_dir: true`, which moves the old content
    aside. A run that starts from a checkpoint in another folder does not resume the one in this folder. A
    folder with any other content, such as the runs of a sweep, is always rejected; for
    `model_checkpoints/<step>`, as other NeoBERT trainers write it, the hint shows how to start from those
    weights.

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
    output, trainer = require_group(facts.output), run.config.trainer
    path, is_run = "trainer.output_dir", bool(output.config_digest or output.checkpoint_steps)
    starts_elsewhere = facts.resume and facts.resume.is_elsewhere and not facts.resume.is_continued
    resumes_it = trainer.resume_from_checkpoint != NEVER and not starts_elsewhere
    if output.exists and not output.is_directory:
        yield Violation(path, f"{output.path} is a file, not a folder", f"set {path} to a folder")
    elif output.obstacle:
        verb = "written to" if output.exists else "created"
        message = f"{output.path} cannot be {verb}: {output.obstacle}"
        yield Violation(path, message, f"set {path} to a folder on a disk with write permission")
    elif not output.exists or output.is_empty:
        return
    elif not is_run and output.foreign_checkpoint:
        message = f"{output.path} contains {FOREIGN_TREE} of another trainer, which cannot be resumed"
        hint = f"set {path} to a new folder, and {hint_to_start_from(output.foreign_checkpoint)}"
        yield Violation(path, message, hint)
    elif not is_run and output.runs:
        message = f"{output.path} contains runs, as after a sweep or search: {listed(output.runs)}"
        hint = f"set {path} to a new folder, or add --sweep or --search with the values of these runs"
        yield Violation(path, printable(message), hint)
    elif not is_run:
        message = f"{output.path} contains files that do not belong to a run"
        yield Violation(path, message, f"set {path} to a new folder")
    elif not (resumes_it or trainer.overwrite_output_dir):
        steps = ", ".join(map(str, output.checkpoint_steps)) or "none"
        yield Violation(
            path,
            f"{output.path} contains another run (checkpoints: {steps})",
            f"set {path} to a new folder, set trainer.resume_from_checkpoint to auto "
            "(`train --resume auto`), or set trainer.overwrite_output_dir to true",
        )
