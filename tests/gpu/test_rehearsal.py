"""The rehearsal on a CUDA device: a sound run passes, memory that is short and a wrong precision do not.

`NEOBERT_GPU_REPORTS` names a folder that the production shape's report and facts are kept in.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from neobert.parallel import world
from profiles.registry import resolve_run
from tests.gpu.obstacles import fused_obstacle
from tests.rehearsal.conftest import judge_rehearsal, rehearsal, text
from validators.finding import Level

__all__ = ["rehearsal", "text"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler and of foreign kernels
ON_A_GPU = {
    "model": {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 768,
        "max_position_embeddings": 512,
    },
    "dataset": {"max_seq_length": 512, "eval_samples": 12},
    "trainer": {"mixed_precision": "bf16", "max_steps": 200},
}
PYTHON_DOCS = (
    "dataset.name=builtin:python-docs",
    "dataset.config=null",
    "dataset.eval_samples=256",
    "tokenizer.name=null",
    "tokenizer.revision=null",
    "tokenizer.vocab_size=30522",
    "wandb.enabled=false",
)
MINUTES = 5


def with_sections(**more: dict[str, Any]) -> dict[str, Any]:
    return {name: ON_A_GPU.get(name, {}) | more.get(name, {}) for name in {*ON_A_GPU, *more}}


def test_a_sound_run_passes(rehearsal):
    found = rehearsal(**with_sections())
    assert found.failed == set(), {code: found.message(code) for code in found.failed}
    assert found.facts.device == "cuda"
    assert found.facts.memory.peak_allocated_mib > 0
    assert found.facts.telemetry.driver_mib is not None
    assert max(found.facts.precision.product_flops, key=found.facts.precision.product_flops.get) == "bfloat16"


def test_fp32_behind_a_bf16_config_is_seen(rehearsal, monkeypatch):
    monkeypatch.setitem(world.AUTOCAST, "bfloat16", "no")
    model = {"model": {"attn_backend": "sdpa", "kernel_backend": "torch"}}
    assert "PRE003" in rehearsal(**with_sections(**model)).failed


def test_one_very_long_document_does_not_fit(rehearsal, text, tmp_path):
    """A share of the device that holds rows of short documents, and not rows of the longest ones."""
    documents = Path(text["path"]).read_text(encoding="utf-8").splitlines()
    short = [json.dumps({"text": json.loads(line)["text"][:60]}) for line in documents]
    words = " ".join(json.loads(line)["text"] for line in documents)
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join([*short, json.dumps({"text": words[:20_000]})]), encoding="utf-8")
    dataset = {"path": str(path), "cache_dir": str(tmp_path / "cache"), "max_seq_length": 8192}
    sections = with_sections(
        dataset=dataset,
        datacollator={"pack_sequences": False},
        model={"max_position_embeddings": 8192},
        trainer={"per_device_train_batch_size": 32, "torch_compile": False},
    )
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2 * 2**30 / total)
    try:
        found = rehearsal(**sections)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.facts.out_of_memory.startswith("running the worst-case microbatch: ")
    _, checks = judge_rehearsal(resolve_run("h200-prod"), found.facts, (Level.STATIC,))
    assert checks["MEM001"].status == "fail"


@pytest.mark.e2e
def test_the_production_shape_is_rehearsed_in_minutes(tmp_path):
    """On an H200, with text that every Python carries: no rule of the rehearsal fails."""
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("needs an H200")
    kernels = "auto" if fused_obstacle() else "fused"
    keys = (*PYTHON_DOCS, f"model.kernel_backend={kernels}", f"dataset.cache_dir={tmp_path / 'cache'}")
    overrides = [word for key in keys for word in ("--set", key)]
    kept = Path(os.environ.get("NEOBERT_GPU_REPORTS", tmp_path))
    facts = kept / "rehearsal-h200-prod.facts.json"
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "preflight", "-p", "h200-prod", "--level", "rehearsal",
         "--output-format", "json", "--save-facts", str(facts), "--output", str(tmp_path / "out"),
         "--set", f"trainer.output_dir={tmp_path / 'runs' / 'one'}", *overrides],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    (kept / "rehearsal-h200-prod.json").write_text(done.stdout or done.stderr, encoding="utf-8")
    report = json.loads(done.stdout)
    failed = {
        check["id"]: check["message"] for check in report["checks"] if check["status"] not in ("pass", "skip")
    }
    assert failed.keys() <= {"PRF002"}, failed
    found = json.loads(facts.read_text(encoding="utf-8"))["rehearsal"]
    assert found["duration_s"] < 60 * MINUTES
