"""A text that is prepared in parts by an array of jobs, and joined by a job after it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.slurm.runs import RUN

pytestmark = pytest.mark.slurm

TEXT = Path(__file__).parents[2] / "docs"
PART = "neobert-launch data prepare run.yaml --part $SLURM_ARRAY_TASK_ID/3 --output prepared"


def test_an_array_prepares_the_parts_and_a_job_after_it_joins_them(cluster, tmp_path):
    for number, page in enumerate(sorted(TEXT.glob("*.md"))[:6]):
        shutil.copy(page, tmp_path / f"{number}.txt")
    data = {"path": "*.txt", "eval_samples": 2, "max_seq_length": 128, "cache_dir": "prepared"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**RUN, "dataset": data, "tokenizer": {"path": "tok"}}))
    own = ("--chdir", tmp_path, "--output", tmp_path / "%x-%A_%a.log")
    cluster.run(
        "bash",
        "-c",
        f"cd {tmp_path} && neobert-launch tokenizer train run.yaml --tokenizer.path null --output tok",
    )
    array = cluster.run("sbatch", "--parsable", "--array=1-3", *own, "--wrap", PART)
    after = (f"--dependency=afterok:{array}", *own)
    join = cluster.run("sbatch", "--parsable", *after, "--wrap", "neobert-launch data join prepared")
    cluster.until_ended(join)
    assert cluster.state(join) == "COMPLETED", [log.read_text() for log in tmp_path.glob("*.log")]
    manifest = json.loads((tmp_path / "prepared" / "manifest.json").read_text())
    assert [each["folder"] for each in manifest["parts"]] == [f"part-{number}-of-3" for number in (1, 2, 3)]
