"""The example that removes near-copies with datatrove finds those that are planted, and prepares the rest."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.data.store.join import join
from neobert.runfiles.prepared_parts import MANIFEST
from tests.data.conftest import write_jsonl

EXAMPLE = Path(__file__).parents[2] / "examples" / "datatrove_minhash.py"
DOCUMENTS, PLANTED, TASKS = 540, 60, 2


def texts() -> list[str]:
    """Return random texts of 120 to 240 words; `PLANTED` of them are copies with two words changed."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abdegiklmnoprstu", k=6)) for _ in range(3000)]
    documents = [generator.choices(words, k=generator.randint(120, 240)) for _ in range(DOCUMENTS)]
    for original in documents[:PLANTED]:
        copy = list(original)
        for place in generator.sample(range(len(copy)), 2):
            copy[place] = generator.choice(words)
        documents.append(copy)
    generator.shuffle(documents)
    return [" ".join(words) for words in documents]


def test_planted_near_copies_are_removed(tokenizer_dir, tmp_path):
    pytest.importorskip("datatrove")
    for task in range(TASKS):
        write_jsonl(tmp_path / "text" / f"{task}.jsonl", texts()[task::TASKS])
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "profile: cpu-demo\n"
        f"dataset: {{name: null, path: {tmp_path / 'output'}, eval_samples: null, validation_split: 0.02}}\n"
        f"tokenizer: {{path: {tokenizer_dir}, vocab_size: null}}\n"
    )
    places = [str(tmp_path / name) for name in ("text", "work", "output")]
    command = [sys.executable, str(EXAMPLE), str(run_file), *places, "--tasks", str(TASKS)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = join(tmp_path / "output")
    kept = report["train"]["documents"] + report["eval"]["documents"]
    assert 57 <= DOCUMENTS + PLANTED - kept <= PLANTED

    manifest = tmp_path / "output" / "part-1-of-2" / MANIFEST
    before = manifest.stat().st_mtime_ns
    subprocess.run(command, capture_output=True, check=True)
    assert manifest.stat().st_mtime_ns == before, "finished tasks are not repeated"
