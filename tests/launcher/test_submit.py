"""`submit`: what it checks here, what it writes, and how it queues."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launcher.commands import submit
from launcher.commands.selection import Selection
from launcher.run.batch import slurm
from neobert.errors import ProjectError
from profiles.registry import resolve_run

SUBMIT = ("submit", "-p", "cpu-demo", "--to", "slurm", "--trainer.output_dir=runs/small")


def test_a_printed_job_is_that_of_the_run(command):
    answer = command(*SUBMIT, "--print", "--nodes", "2", "--time", "1:00:00", "--partition", "p",
                     "--extra=--exclusive", "--extra=--comment=two words", "--setup", "source env",
                     "--signal-lead", "60").passed()  # fmt: skip
    assert answer.out.startswith("#!/bin/bash\n")
    assert "\nsource env\n" in answer.out
    options = [line.removeprefix("#SBATCH ") for line in answer.out.splitlines() if "#SBATCH" in line]
    wanted = ["--job-name=small", "--nodes=2", "--time=1:00:00", "--signal=TERM@60", "--requeue",
              "--partition=p", "--exclusive", "'--comment=two words'"]  # fmt: skip
    assert [each for each in wanted if each not in options] == []
    assert (
        "neobert-launch train --profile cpu-demo --set trainer.output_dir=runs/small --resume auto"
        in answer.out
    )
    assert f"mkdir -p {Path('runs/small.submit').absolute()}\n" in answer.err
    assert not Path("runs").exists()


def test_an_elastic_job_asks_for_a_range_of_nodes(command):
    kept = (*SUBMIT, "--print", "--trainer.keep_step=true", "--trainer.gradient_accumulation_steps=4")
    answer = command(*kept, "--nodes", "1:4")
    assert "#SBATCH --nodes=1-4\n" in answer.out
    assert "#SBATCH --ntasks-per-node" not in answer.out, "Slurm would give one node"
    assert "\nfor size in 1 2 4; do\n" in answer.out
    command(*kept, "--nodes", "2:3").refused(1, "possible numbers of processes: 1, 2, 4\n")


def test_gpus_are_those_of_a_node(command):
    step = "--trainer.gradient_accumulation_steps=4"
    answer = command("submit", "-p", "a100-prod", "--to", "slurm", "--print", "--nproc-per-node", "4", step)
    assert "#SBATCH --gpus-per-node=4\n" in answer.out
    assert "--nproc-per-node 4 --resume auto" in answer.out


def test_a_run_that_fails_its_checks_is_not_queued(command):
    answer = command(*SUBMIT, "--scheduler.warmup_steps=5000")
    assert answer.code == 1
    assert "SCH001" in answer.out
    assert "nothing was written or queued" in answer.out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "a100-prod", "--signal-lead", "1"), "three saves"),
        (("--extra", "exclusive"), "is not a single option"),
        (("--time", "1:00\nrm -r runs"), "is not a time limit"),
        (("--time", "24h"), "'24h' is not a time limit"),
        (("--parallel", "2"), "is given without --sweep"),
        (("--nodes", "4:2"), "neither a number of nodes nor a range"),
        (("--nodes", "2:4"), "add --trainer.keep_step true"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(command, arguments, words):
    command(*SUBMIT, "--print", *arguments).refused(2, words)


@pytest.mark.parametrize("time", ["90", "90:30", "1:30:00", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED"])
def test_each_form_of_a_time_limit_of_slurm_is_taken(time):
    slurm.require_time(time)


def test_a_sweep_is_an_array_whose_tasks_name_their_point(command):
    answer = command(*SUBMIT, "--print", "--sweep", "seed=1,2,3,4", "--parallel", "2")
    assert answer.out.startswith("#!/bin/bash\n")
    assert "#SBATCH --array=0-3%2\n" in answer.out
    assert '--sweep seed=1,2,3,4 --resume auto --point "$SLURM_ARRAY_TASK_ID"' in answer.out


def test_a_search_is_an_array_whose_tasks_share_the_trials(command):
    rate, own = "optimizer.lr=log(1e-4,1e-2)", ("--trials", "6", "--parallel", "2")
    answer = command(*SUBMIT, "--print", "--search", rate, *own)
    assert answer.out.startswith("#!/bin/bash\n"), answer.err
    assert "6 trials between these corners: at most" in answer.err
    assert "#SBATCH --array=0-1\n" in answer.out
    assert f"--search '{rate}' --trials 6 --resume auto \"" in answer.out
    command(*SUBMIT, "--print", "--search", rate, "--sweep", "seed=1,2").refused(2, "are both given")


@pytest.mark.child
def test_a_job_is_queued_from_a_script_that_stays(command, tmp_path, monkeypatch):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        '#!/bin/sh\necho "$@" >> queued\n[ -z "$REFUSAL" ] || { echo "$REFUSAL" >&2; exit 1; }\necho 17\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, second = command(*SUBMIT), command(*SUBMIT)
    folder = tmp_path / "runs" / "small.submit"
    assert (first.code, second.code) == (0, 0)
    assert f"job 17: {folder}/1.sbatch\n" in first.out
    assert Path("queued").read_text() == "".join(f"--parsable {folder}/{n}.sbatch\n" for n in (1, 2))
    assert not (tmp_path / "runs" / "small").exists(), "train refuses a folder that is not a run directory"
    monkeypatch.setenv("REFUSAL", "sbatch: error: invalid partition specified: p")
    command(*SUBMIT).refused(1, "invalid partition specified: p")


@pytest.mark.child
def test_without_slurm_the_script_is_written_for_another_machine(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = command(*SUBMIT, "--output", "job.sbatch")
    assert (answer.code, answer.out) == (0, "job.sbatch: queue it with: sbatch job.sbatch\n")
    assert Path("job.sbatch").read_text().startswith("#!/bin/bash\n")
    command(*SUBMIT).refused(2, "sbatch is not installed here")


ELSEWHERE = ("--trainer.output_dir=/data/Runs.1", "--volume", "/data=vol", "--image", "i:1", "--print")
TWO_NODES = (
    "submit",
    "-p",
    "h200-prod",
    "--nodes",
    "2",
    "--trainer.gradient_accumulation_steps=2",
    *ELSEWHERE,
)


def test_a_task_of_skypilot_is_started_again_after_exit_75_only(command):
    task = yaml.safe_load(command(*TWO_NODES, "--to", "skypilot", "--setup", "source env").out)
    recovery = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [75]}
    assert task["resources"] == {"accelerators": "H200:1", "image_id": "docker:i:1", "job_recovery": recovery}
    assert (task["num_nodes"], task["volumes"]) == (2, {"/data": "vol"})
    first, *rest = task["run"].splitlines()
    assert first == "source env"
    assert rest[-1].startswith("exec neobert-launch train --profile h200-prod ")
    assert '--node-rank "$SKYPILOT_NODE_RANK" --rdzv-endpoint "$head:29400"' in task["run"]


def test_a_job_of_kubernetes_retries_by_exit_code(command):
    service, job = yaml.safe_load_all(command(*TWO_NODES, "--to", "kubernetes").out)
    name = "runs-1"
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == (name, "None")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert final["onExitCodes"] == {"containerName": "train", "operator": "In", "values": [1, 2, 3, 93]}
    assert (pod["restartPolicy"], pod["subdomain"]) == ("Never", name)
    assert pod["terminationGracePeriodSeconds"] >= 120
    (container,) = pod["containers"]
    assert (
        f'--node-rank "$JOB_COMPLETION_INDEX" --rdzv-endpoint {name}-0.{name}:29400'
        in container["command"][2]
    )
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}


@pytest.mark.parametrize(
    ("folder", "name"), [("日本", "run"), ("2024_Run", "run-2024-run"), ("a" * 49 + "_b", "a" * 49)]
)
def test_names_are_valid_for_every_engine(folder, name, command):
    answer = command(*TWO_NODES, "--to", "kubernetes", "--trainer.output_dir", f"/data/{folder}")
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(answer.out)] == [name, name]


def test_a_task_for_a_run_that_names_no_gpu_needs_one():
    run = replace(resolve_run("h200-prod"), profile=None)
    options = submit.SubmitOptions(selection=Selection.from_options(None, None, None), engine="skypilot")
    with pytest.raises(ProjectError, match="needs the name of a GPU"):
        submit.make_batch(run, options, Path("logs"), 0)
    assert submit.make_batch(run, replace(options, gpu="H100"), Path("logs"), 0).gpu == "H100"


def test_a_job_of_one_pod_retries_after_exit_75_only(command):
    job = yaml.safe_load(command(*SUBMIT, *ELSEWHERE, "--to", "kubernetes").out)
    final = job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]
    assert (final["operator"], final["values"]) == ("NotIn", [75])
    assert "resources" not in job["spec"]["template"]["spec"]["containers"][0]


def test_a_file_for_another_engine_makes_no_folder_of_logs(command, tmp_path):
    volume = ("--trainer.output_dir", str(tmp_path / "volume" / "run"), "--volume", f"{tmp_path}/volume=name")
    assert command("submit", "-p", "cpu-demo", "--to", "skypilot", "-o", "task.yaml", *volume).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["task.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("skypilot",), "submit queues on Slurm only"),
        (("skypilot", "--print"), "is not on a volume"),
        (("skypilot", "--print", "--volume", "data"), "is not of the form PATH=NAME"),
        (("skypilot", "--print", "--time", "1:00:00"), "--time: the option applies to Slurm only"),
        (("skypilot", "--print", "--qos", "high"), "--qos: the option applies to Slurm only"),
        (("kubernetes", "--print"), "a pod needs an image, and a volume"),
    ],
)
def test_what_an_engine_does_not_have_or_needs_is_named(command, arguments, words):
    command("submit", "-p", "cpu-demo", "--to", *arguments).refused(2, words)
