"""The batch script of `submit`, run with a launcher and a scheduler that pretend."""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.probes.scheduler import probe_scheduler
from launcher.run.batch.request import BatchRequest
from launcher.run.batch.slurm import render

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm.sbatch"
REQUEST = BatchRequest(
    name="neobert",
    command=("neobert-launch", "train", "--config", "run.yaml", "--resume", "auto"),
    nodes=2,
    gpus=8,
    time="24:00:00",
    setup="source .venv/bin/activate",
)
LAUNCHER = '#!/bin/bash\necho "$@" > arguments\nenv > environment\nexit "${CODE:-75}"\n'
SCHEDULER = {
    "scontrol": 'case "$1 $2" in "show hostnames") echo node-a; echo node-b;; '
    '"show job") echo "JobId=17 JobState=${STATE:-RUNNING} Restarts=${RESTARTS:-0} Requeue=1";; '
    '*) echo "$@" > requeued; [ -z "$REFUSAL" ] || { echo "$REFUSAL" >&2; exit 1; };; esac',
    "srun": 'echo "$@" > step; while [[ "$1" == -* ]]; do shift; done; exec "$@"',
    "squeue": 'echo "$END"',
}
child = pytest.mark.child


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run the script of a request as a job with these variables; return exit code and output."""
    commands = {name: f"#!/bin/bash\n{text}\n" for name, text in SCHEDULER.items()}
    for name, text in (commands | {"neobert-launch": LAUNCHER}).items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(request: BatchRequest, **variables: str) -> tuple[int, str]:
        Path("job.sbatch").write_text(render(replace(request, setup="")))
        job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_NUM_NODES": "1"}
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **job, **variables}
        done = subprocess.run(
            ["bash", "job.sbatch"], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def requeued() -> str:
    return Path("requeued").read_text() if Path("requeued").exists() else ""


@child
@pytest.mark.parametrize("code", ["75", "143"])
def test_a_job_whose_run_has_saved_queues_itself_again(run, code):
    assert run(REQUEST, CODE=code)[0] == 0
    assert requeued() == "requeue 17\n"


@child
def test_a_step_that_a_returned_node_has_killed_starts_again(run):
    assert run(REQUEST, CODE="137", SLURM_RESTART_COUNT="1", RESTARTS="1")[0] == 0
    assert requeued() == "requeue 17\n"


@child
@pytest.mark.parametrize("code", [0, 1, 2, 4, 93, 137])
def test_any_other_end_is_the_end_of_the_job(run, code):
    assert run(REQUEST, CODE=str(code))[0] == code
    assert requeued() == ""


@child
@pytest.mark.parametrize(
    ("nodes", "options"), [("1", "--nnodes 1"), ("2", "--nnodes 2 --rdzv-endpoint node-a:21717")]
)
def test_one_script_starts_a_launcher_on_each_node(run, nodes, options):
    run(REQUEST, SLURM_JOB_NUM_NODES=nodes, SLURM_CPUS_PER_TASK="6")
    assert Path("arguments").read_text() == f"train --config run.yaml --resume auto {options}\n"
    step = f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task=6 "
    assert Path("step").read_text().startswith(step)


@child
def test_a_job_that_starts_again_meets_at_another_port(run):
    run(REQUEST, SLURM_JOB_NUM_NODES="2", SLURM_RESTART_COUNT="3")
    assert Path("arguments").read_text().endswith("--rdzv-endpoint node-a:21720\n")


@child
@pytest.mark.parametrize(("given", "used"), [("2", "2"), ("3", "2"), ("4", "4"), ("7", "4")])
def test_an_elastic_job_uses_the_nodes_that_divide_its_step(run, given, used):
    _, output = run(replace(REQUEST, nodes=2, sizes=(2, 4)), SLURM_JOB_NUM_NODES=given)
    assert f" --nnodes {used} --rdzv" in Path("arguments").read_text()
    assert Path("step").read_text().startswith(f"--nodes={used} --ntasks={used} ")
    assert f"job 17: training on {used} of {given} nodes\n" in output


@child
def test_a_task_of_an_array_trains_its_point_and_queues_only_itself(run):
    """The last task of an array has the number of the array: all tasks were killed and requeued."""
    array = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    assert run(replace(REQUEST, tasks=4, is_sweep=True), **array)[0] == 0
    assert requeued() == "requeue 17_2\n"
    assert "--point 2 " in Path("arguments").read_text()


@child
@pytest.mark.parametrize("variables", [{"STATE": "PENDING"}, {"RESTARTS": "1"}])
def test_a_job_that_slurm_has_queued_already_ends_without_an_error(run, variables):
    """After a preemption; and on a lost node that returns, which must not end the job that replaced it."""
    assert run(REQUEST, **variables) == (0, "job 17: Slurm has queued it again already\n")
    assert requeued() == ""


@child
@pytest.mark.parametrize(
    ("refusal", "code"), [("Job is pending execution", 0), ("Requeue is disabled for the job", 75)]
)
def test_a_refusal_to_queue_is_reported(run, refusal, code):
    assert run(REQUEST, REFUSAL=refusal) == (code, f"job 17: {refusal}\n")


@child
def test_a_job_does_not_queue_itself_without_end(run):
    counts = {"RESTARTS": "3", "SLURM_RESTART_COUNT": "3"}
    assert run(replace(REQUEST, requeue_limit=4), **counts)[0] == 0
    Path("requeued").unlink()
    code, output = run(replace(REQUEST, requeue_limit=3), **counts)
    assert (code, output) == (75, "job 17: not queued again after 3 restarts (limit 3)\n")
    assert requeued() == ""


@child
@pytest.mark.parametrize(
    ("variables", "end"),
    [({"END": "1970-01-01T00:01:40", "TZ": "UTC"}, "100"), ({"SLURM_JOB_END_TIME": "99"}, "99")],
)
def test_the_trainer_gets_the_end_of_the_job(run, variables, end):
    run(REQUEST, **variables)
    assert f"SLURM_JOB_END_TIME={end}\n" in Path("environment").read_text()


def test_the_example_is_the_script_of_submit():
    assert EXAMPLE.read_text(encoding="utf-8") == render(REQUEST)


def test_the_lead_that_the_script_declares_is_the_one_it_asks_for():
    text = render(replace(REQUEST, lead_s=45))
    requested, declared = re.search(r"TERM@(\d+)", text), re.search(r"NEOBERT_SIGNAL_LEAD_S=(\d+)", text)
    assert requested
    assert declared
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "99", "NEOBERT_SIGNAL_LEAD_S": declared[1]}
    assert probe_scheduler(environment).signal_lead_s == float(requested[1]) == 45


def test_options_and_paths_survive_the_script():
    text = render(replace(REQUEST, log="/a b/%%/%x.log", tasks=4, parallel=2, options=("--qos=q",)))
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH '--output=/a b/%%/%x.log'\n#SBATCH --qos=q\n" in text
    assert "#SBATCH --array=0-3%2\n" in text
