"""Batch script for Slurm, for one or several nodes, and its submission."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from launcher.run.batch.request import BatchRequest
from neobert.errors import EXIT_CHECK_FAILED, EXIT_PREEMPTED, EXIT_USAGE, ProjectError

SUBMIT_S = 60.0
TIME = re.compile(r"(?:\d+-)?\d+(?::\d+){0,2}|unlimited|infinite", re.ASCII | re.IGNORECASE)
HEAD = f"""\
#!/bin/bash
# Batch script of `neobert-launch submit`: sbatch FILE queues it.
#
# Slurm warns the launchers before the time limit and at a preemption: they save and exit with
# {EXIT_PREEMPTED}, the job queues itself again, and --resume auto continues. After a lost node, Slurm queues
# it again. Any other exit code ends the job: a retry would fail in the same way.
"""
SETTINGS = """\
# Slurm does not report the lead of --signal: HST005 compares it with the time of three saves. torchrun kills
# ranks that take longer than its timeout to save.
export NEOBERT_SIGNAL_LEAD_S={lead_s} TORCH_ELASTIC_SHUTDOWN_TIMEOUT={lead_s}
"""
START = """\
# A task of an array queues only itself again: the last one has the number of the array as SLURM_JOB_ID.
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}

# The trainer stops by the clock before the end of the job, which not every version of Slurm reports.
if [ -z "$SLURM_JOB_END_TIME" ]; then
  end=$(timeout 10 squeue --noheader --job "$job" --format %e) && end=$(date --date "$end" +%s) \\
    && export SLURM_JOB_END_TIME=$end
fi

{count}
# Launchers of several nodes meet on the first one, at a port that neither another job of this script nor an
# earlier start of this one takes there: a lost node that returns finds nobody.
nodes=(--nnodes "$count")
if [ "$count" -gt 1 ]; then
  head=${{NEOBERT_HEAD:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}}
  nodes+=(--rdzv-endpoint "$head:$((20000 + (SLURM_JOB_ID * 101 + ${{SLURM_RESTART_COUNT:-0}}) % 10000))")
fi

# As a step: Slurm warns steps, and this script only at the end. srun returns the highest exit code.
cpus=${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}}
srun --nodes="$count" --ntasks="$count" --ntasks-per-node=1 $cpus --kill-on-bad-exit=0 --cpu-bind=none \\
  {line} "${{nodes[@]}}"
code=$?
"""
COUNT = "count=$SLURM_JOB_NUM_NODES\n"
COUNT_FROM_SIZES = """\
# Of the nodes that Slurm gave, as many as divide the step of the run; others stay idle.
count=$SLURM_JOB_NUM_NODES
for size in {sizes}; do
  if [ "$size" -le "$SLURM_JOB_NUM_NODES" ]; then count=$size; fi
done
echo "job $job: training on $count of $SLURM_JOB_NUM_NODES nodes"
"""
AGAIN = """\
restarts=${{SLURM_RESTART_COUNT:-0}}
# {terminated}: the launcher was stopped before it handled signals, and training had not begun. {killed} after
# a restart: a lost node returned and ended this step, which has the same number as its own. {killed} without
# a restart: out of memory.
case "$code" in
  {preempted}|{terminated}) ;;
  {killed}) [ "$restarts" -gt 0 ] || exit "$code" ;;
  *) exit "$code" ;;
esac
# Slurm may have queued the job again: at the end of the grace time, or when this node was lost and returns.
state=" $(timeout 30 scontrol show job --oneliner "$job") "
if [[ $state == *" JobState=PENDING "* ]] \\
  || [[ $state =~ \\ Restarts=([0-9]+)\\  && ${{BASH_REMATCH[1]}} -ne $restarts ]]; then
  echo "job $job: Slurm has queued it again already"
  exit 0
fi
if [ "$restarts" -ge {limit} ]; then
  echo "job $job: not queued again after $restarts restarts (limit {limit})"
  exit "$code"
fi
refusal=$(scontrol requeue "$job" 2>&1) && exit 0
echo "job $job: $refusal"
[[ $refusal == *"pending execution"* ]] && exit 0
exit "$code"
"""
TERMINATED, KILLED = 143, 137
POINT = '--point "$SLURM_ARRAY_TASK_ID"'


def render(request: BatchRequest) -> str:
    """Return the batch script, which queues itself again after a preemption."""
    line = f"{request.line} {POINT}" if request.is_sweep else request.line
    return "\n".join(
        [
            HEAD + "".join(f"#SBATCH {shlex.quote(option)}\n" for option in _sbatch_options(request)),
            SETTINGS.format(lead_s=request.lead_s),
            *([f"{request.setup}\n"] if request.setup else []),
            START.format(line=line, count=_node_count_lines(request)),
            AGAIN.format(
                preempted=EXIT_PREEMPTED, terminated=TERMINATED, killed=KILLED, limit=request.requeue_limit
            ),
        ]
    )


def _node_count_lines(request: BatchRequest) -> str:
    """Return the lines that set `count`, the number of nodes on which the run trains."""
    return COUNT_FROM_SIZES.format(sizes=" ".join(map(str, request.sizes))) if request.sizes else COUNT


def _sbatch_options(request: BatchRequest) -> Iterator[str]:
    yield f"--job-name={request.name}"
    yield f"--nodes={request.nodes}" + (f"-{request.sizes[-1]}" if request.sizes else "")
    if not request.sizes:  # with it, Slurm gives the least nodes of a range; srun has it too
        yield "--ntasks-per-node=1"
    if request.gpus:
        yield f"--gpus-per-node={request.gpus}"
    if request.time:
        yield f"--time={request.time}"
    if request.tasks:
        yield f"--array=0-{request.tasks - 1}" + (f"%{request.parallel}" if request.parallel else "")
    yield f"--signal=TERM@{request.lead_s}"
    yield "--requeue"
    yield "--open-mode=append"
    yield f"--output={request.log}"
    if request.folder:
        yield f"--chdir={request.folder}"
    yield from request.options


def require_time(text: str) -> None:
    """Raise ProjectError for a time limit that sbatch does not accept."""
    if not TIME.fullmatch(text):
        hint = "pass --time 24:00:00, 1-12 (a day and 12 hours) or 90 (minutes)"
        raise ProjectError("usage", f"{text!r} is not a time limit", hint, "--time", EXIT_USAGE)


def submit(script: Path) -> str:
    """Queue a batch script with sbatch and return the job ID.

    Raises ProjectError if sbatch is missing, does not respond, or refuses the script.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            capture_output=True, text=True, timeout=SUBMIT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        hint = f"run this on a login node of the cluster: sbatch {shlex.quote(str(script))}"
        raise ProjectError("no-scheduler", "sbatch is not installed here", hint, "--to", EXIT_USAGE) from None
    except subprocess.TimeoutExpired:
        message = f"sbatch did not respond within {SUBMIT_S:g} s"
        raise ProjectError("no-scheduler", message, "check the cluster with squeue", "--to") from None
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2] or f"sbatch: exit code {done.returncode}"
        hint = "change the options of submit; --extra passes any option of sbatch"
        raise ProjectError("job-refused", reason, hint, str(script), EXIT_CHECK_FAILED)
    return done.stdout.strip().partition(";")[0]
