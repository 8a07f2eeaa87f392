"""Late interaction: a model folder is trained, saved and read again by sentence-transformers' own classes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from neobert.export.verify import clean_environment

PAGE = Path(__file__).parents[2] / "docs" / "embeddings.md"
ENCODE = """
vectors = [*model.encode_query(["the model reads"]), *model.encode_document(["a b c text", "text"])]
print("VECTORS", json.dumps([each.tolist() for each in vectors]))
"""


def example(folder: Path) -> str:
    """Return the example of the page, with fewer and shorter steps."""
    (code,) = re.findall(r"## Late interaction.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    replaced = {
        '"runs/base-pairs/checkpoints/best"': repr(str(folder)),
        "max_steps=1000": 'max_steps=50, save_strategy="no", disable_tqdm=True, use_cpu=True',
        "per_device_train_batch_size=64": "per_device_train_batch_size=4",
    }
    for found, other in replaced.items():
        assert code.count(found) == 1, found
        code = code.replace(found, other)
    return f"import json\n{code}{ENCODE}"


READ = f"""
import json
from sentence_transformers import MultiVectorEncoder
model = MultiVectorEncoder("runs/late/model", trust_remote_code=True, device="cpu")
{ENCODE}"""


def vectors_of(code: str, work_dir: Path) -> list[np.ndarray]:
    environment = clean_environment(str(work_dir)) | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-I", "-c", code]
    done = subprocess.run(words, cwd=work_dir, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("VECTORS "))
    return [np.array(each) for each in json.loads(line.removeprefix("VECTORS "))]


@pytest.mark.skipif(
    settings.get_current_profile_name() != "thorough", reason="20 seconds of training: make test-thorough"
)
def test_fifty_steps_are_read_in_another_process(model_folder, tmp_path):
    words = ["a", "b", "c", "the", "model", "reads", "text"]
    rows = [{"query": f"{one} {other}", "positive": f"{other} {one}"} for one in words for other in words]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    trained = vectors_of(example(model_folder), tmp_path)
    read = vectors_of(READ, tmp_path)
    assert [each.shape[1] for each in trained] == [128] * 3
    for one, other in zip(trained, read, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
