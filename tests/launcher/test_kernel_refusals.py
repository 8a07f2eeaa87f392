"""Attention that cannot run on this machine is refused by the commands that people type, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

RUN_FILE = """\
profile: cpu-demo
model: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}
trainer: {output_dir: run}
"""


@pytest.fixture(autouse=True)
def _run_file() -> None:
    Path("run.yaml").write_text(RUN_FILE, encoding="utf-8")


@pytest.mark.child
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("name", "kernel"), [("train", "flash_attn_varlen"), ("preflight", "flex")])
def test_a_kernel_of_gpus_is_refused_on_a_cpu(command, name, kernel):
    more = ("--set", f"model.attn_backend={kernel}", "--output-format", "json")
    answer = command(name, "-c", "run.yaml", *more)
    assert answer.code == 1
    found = {finding["code"]: finding for finding in answer.json["findings"]}["ATT003"]
    assert found["message"] == f"{kernel} needs CUDA, but the run uses the CPU"
    assert not Path("run/checkpoints").exists()


def test_the_plan_says_which_kernels_and_why(command):
    shown = command("plan", "--profile", "h200-prod", "--set", "model.kernel_backend=auto", "--verbose").out
    assert "kernels: fused, attention triton_packed" in shown
    assert "with triton and quack-kernels" in shown
    without = command(
        "plan", "--profile", "h200-prod", "--set", "model.kernel_backend=torch", "--verbose"
    ).out
    assert "kernels: torch, attention torch_varlen" in without
    assert "PyTorch's kernel; flash_attn_4 or flash_attn_3 or flash_attn_2 if installed" in without
