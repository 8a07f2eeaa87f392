"""The pipeline of datatrove that removes near-copies and prepares the rest, by its executor for Slurm."""

from pathlib import Path

import pytest
import yaml

from tests.data.conftest import write_jsonl
from tests.data.test_datatrove_minhash import EXAMPLE, texts
from tests.slurm.runs import RUN

pytestmark = pytest.mark.slurm

TASKS, DOCUMENTS = 3, 600
PIPELINE = f"{EXAMPLE} run.yaml text work-%s %s --tasks {TASKS}"


def test_arrays_of_datatrove_write_the_parts_that_its_local_executor_writes(cluster, tmp_path):
    for task in range(TASKS):
        write_jsonl(tmp_path / "text" / f"{task}.jsonl", texts()[:DOCUMENTS][task::TASKS])
    data = {"name": None, "path": "text", "eval_samples": None, "validation_split": 0.02}
    run = {**RUN, "dataset": data, "tokenizer": {"path": "tok", "vocab_size": None}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))

    def run(command: str) -> str:
        return cluster.run("bash", "-c", f"cd {tmp_path} && {command}")

    trained = "--tokenizer.path null --tokenizer.vocab_size 2000 --output tok"
    run(f"neobert-launch tokenizer train run.yaml {trained}")
    run("python " + PIPELINE % ("slurm", "slurm") + " --slurm low")
    cluster.until(lambda: not cluster.run("squeue", "-h"), "the arrays do not end")
    run("python " + PIPELINE % ("local", "local"))
    assert "parts            3, joined" in run("neobert-launch data join slurm")
    by_slurm, by_local = (parts_of(tmp_path / name) for name in ("slurm", "local"))
    assert by_slurm == by_local


def parts_of(folder: Path) -> dict[str, bytes]:
    """Return the files of the parts; the manifest of all of them names their place."""
    files = (path for path in folder.glob("part-*/**/*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
