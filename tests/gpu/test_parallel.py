"""Two GPUs against one: the same microbatches a step give the same losses, on every kernel, in both modes."""

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from neobert.config import from_dict
from tests.gpu import parallel_ranks
from tests.gpu.obstacles import fused_obstacle
from tests.training.conftest import corpus_of, write_config

HIDDEN, HEADS, INTERMEDIATE, MICROBATCHES = 768, 12, 3072, 4


FUSED = pytest.param("fused", marks=pytest.mark.skipif("fused_obstacle()", reason="needs quack on Hopper"))
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(80)]
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 150))) for _ in range(900)]
    return corpus_of(tmp_path_factory.mktemp("text"), texts)


def write_run(run_dir: Path, text: dict[str, str], num_ranks: int, mode: str, **model: Any) -> None:
    shape = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": INTERMEDIATE}
    config = from_dict(
        {
            "model": {"num_hidden_layers": 3, "max_position_embeddings": 256, **shape, **model},
            "tokenizer": {"vocab_size": 256},
            "dataset": {**text, "max_seq_length": 256, "eval_samples": 20},
            "trainer": {
                "output_dir": str(run_dir),
                "max_steps": 100,
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": MICROBATCHES // num_ranks,
                "torch_compile": True,
                "logging_steps": 100,
            },
            "distributed": {"nproc_per_node": num_ranks, "mode": mode},
        }
    )
    write_config(run_dir, config)


@pytest.fixture(scope="module")
def seen(text, tmp_path_factory):
    """Return a function that says what came of a run; all start at once, as most of it is compiling."""
    kernels = ["triton", "torch"] + ["fused"] * (not fused_obstacle())
    shapes = [(1, "replicated"), (2, "replicated"), (2, "fsdp2")]
    keys = [(num_ranks, name, mode) for name in kernels for num_ranks, mode in shapes]
    with ThreadPoolExecutor(len(keys)) as pool:
        reports = {key: pool.submit(report, tmp_path_factory.mktemp("run"), text, *key) for key in keys}
        yield lambda num_ranks, kernels, mode="replicated": reports[num_ranks, kernels, mode].result()


def report(run_dir: Path, text: dict[str, str], num_ranks: int, kernels: str, mode: str) -> dict[str, Any]:
    write_run(run_dir, text, num_ranks, mode, kernel_backend=kernels)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [sys.executable, *torchrun, parallel_ranks.__file__, str(run_dir)]
    ended = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert not ended.returncode, (ended.stdout + ended.stderr)[-6000:]
    return dict(json.loads((run_dir / "seen.json").read_text()))


@pytest.mark.parametrize("mode", ["replicated", "fsdp2"])
@pytest.mark.parametrize("kernels", [FUSED, "triton", "torch"])
def test_two_gpus_train_as_one(seen, kernels, mode):
    alone, shared = seen(1, kernels), seen(2, kernels, mode)
    assert shared["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-5)
    assert shared["losses"] == pytest.approx(alone["losses"], rel=2e-3)
    assert shared["eval_loss"] == pytest.approx(alone["eval_loss"], rel=5e-3)
    assert shared["losses"][-1] < 0.9 * shared["losses"][0]
    assert (shared["num_weights"], shared["dtypes"]) == (alone["num_weights"], ["torch.float32"])


@pytest.mark.parametrize("mode", ["replicated", "fsdp2"])
@pytest.mark.parametrize("kernels", [FUSED, "triton", "torch"])
def test_no_graph_breaks_and_nothing_is_compiled_late(seen, kernels, mode):
    shared = seen(2, kernels, mode)
    assert not shared["graph_breaks"]
    assert shared["compiled_late"] == 0
