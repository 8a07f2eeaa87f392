"""Host rules of a batch job: the time between its warning and its end."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import remaining_of, subject_of
from validators.rule import Violations, needed, rule

SAVES_OF_WARNING = 3
WRITE_MIB_PER_S = 200


def lead_for_saves_s(plan: Plan) -> float:
    """Return the seconds before its end at which a job has to be warned: those of three saves."""
    return SAVES_OF_WARNING * plan.checkpoint_mib.value / WRITE_MIB_PER_S


@rule("HST005", "abrupt-walltime", severity=Severity.FAIL, level=Level.HOST, needs=("scheduler",))
def abrupt_walltime(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A batch job that is killed before it can save a checkpoint.

    ## What it does
    For a job whose time limit ends before the run does, requires that the scheduler sends a signal before
    the kill, early enough for three saves at an assumed 200 MiB/s. If it does, a time limit below the
    predicted duration is a warning: the job must be requeued. The same holds if Slurm reports the end of the
    job (`SLURM_JOB_END_TIME`): the trainer then stops in time by the clock. For a run that resumes or
    continues from a checkpoint, only the remaining steps count. Fails for a job that has ended, whose
    variables are left in this environment. Without a scheduler the rule does not apply.

    ## Why is this bad?
    A killed job loses everything since its last save, possibly each time it is requeued.

    ## Example
    ```text
    #SBATCH --time=24:00:00
    ```

    ## Use instead
    ```text
    #SBATCH --time=24:00:00 --signal=TERM@120 --requeue
    ```
    """
    scheduler = needed(facts.scheduler)
    left = remaining_of(run, plan, facts)
    left_s, needed_s = scheduler.walltime_left_s, left.eta_s.value
    if not scheduler.name or left_s is None or left_s >= needed_s:
        return
    if left_s <= 0:
        message = f"job {scheduler.job_id} ended {-left_s / 3600:.1f} hours ago: the run would stop at once"
        hint = "unset SLURM_JOB_ID and SLURM_JOB_END_TIME, which are from another job"
        yield Violation("guard.walltime_limit_hours", message, hint)
        return
    lead = lead_for_saves_s(plan)
    takes = f"{subject_of(left)} takes {needed_s / 3600:.1f} hours"
    ends = f"job {scheduler.job_id} ends in {left_s / 3600:.1f} hours, but {takes}"
    if scheduler.signal_lead_s < lead:
        signal = f"its signal comes {scheduler.signal_lead_s:g} s before the kill (at least {lead:.0f} s)"
        message = f"{ends}; {signal}"
        severity = Severity.WARN if scheduler.end_is_known else None
        yield Violation("guard.walltime_limit_hours", message, f"sbatch --signal=TERM@{lead:.0f}", severity)
    else:
        yield Violation(
            "guard.walltime_limit_hours", ends, "requeue the job with --resume auto", Severity.WARN
        )


@rule("HST013", "short-preemption", severity=Severity.FAIL, level=Level.HOST, needs=("scheduler",))
def short_preemption(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A batch job that may be preempted too fast to save a checkpoint.

    ## What it does
    For a job in a Slurm partition whose jobs are preempted, requires that the time between the warning and
    the kill is enough for three saves at an assumed 200 MiB/s. That time is the partition's `GraceTime`, if
    the launcher runs as a step (`srun`), and the `KillWait` of the cluster: Slurm warns a batch script only
    when the grace time is over. Only warns for a smoke run. Without preemption by partition the rule does not
    apply.

    ## Why is this bad?
    A preempted job loses everything since its last save, each time it is preempted.

    ## Example
    ```text
    PartitionName=scavenge PreemptMode=REQUEUE GraceTime=0
    ```

    ## Use instead
    ```text
    neobert-launch submit run.yaml --to slurm --partition PARTITION
    ```
    """
    scheduler, needed_s = needed(facts.scheduler), lead_for_saves_s(plan)
    lead_s = scheduler.preempt_lead_s
    if lead_s is None or lead_s >= needed_s:
        return
    message = (
        f"job {scheduler.job_id} may be preempted {lead_s:g} s after its warning (at least {needed_s:.0f} s: "
        "three saves)"
    )
    hint = "submit the job to another partition: neobert-launch submit --to slurm --partition PARTITION"
    if not scheduler.is_step:
        hint = "start the launcher with srun, as `neobert-launch submit` does: steps are warned earlier"
    yield Violation("", message, hint, None if run.is_production else Severity.WARN)
