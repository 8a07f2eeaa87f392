"""`export` of a causal run: the mean of checkpoints in bf16, with what a library needs to chat with it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.errors import EXIT_OK, EXIT_USAGE
from neobert.runfiles.checkpoint.manifest import seal_checkpoint

WEIGHTS = "model.safetensors"


def export(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "export", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def causal_run(chatty: Path, tmp_path: Path) -> Path:
    """Return a run of two checkpoints, the second with weights three times as large."""
    from safetensors.torch import load_file, save_file

    for step, factor in ((1, 1.0), (2, 3.0)):
        folder = tmp_path / "run" / "checkpoints" / str(step)
        shutil.copytree(chatty, folder)
        state = {name: tensor * factor for name, tensor in load_file(chatty / WEIGHTS).items()}
        save_file(state, folder / WEIGHTS, {"format": "pt"})
        seal_checkpoint(folder, step, "digest", "2026-01-01T00:00:00+00:00")
    return tmp_path / "run"


@pytest.mark.usefixtures("warm")
def test_the_mean_of_a_causal_run_is_exported_in_bf16(causal_run, chatty, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = export(causal_run, "--average", "2", "--dtype", "bf16", "-o", tmp_path / "out")
    assert done.returncode == EXIT_OK, done.stderr
    folder = tmp_path / "out" / "hf"
    written, first = load_file(folder / WEIGHTS), load_file(chatty / WEIGHTS)
    assert written.keys() == first.keys()
    assert all(torch.equal(written[name], (2 * first[name]).bfloat16()) for name in first)
    assert json.loads((folder / "conversion.json").read_text())["weights"] == "bfloat16 mean of 2 checkpoints"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == 1
    template = AutoTokenizer.from_pretrained(folder).chat_template
    assert template == (chatty / "chat_template.jinja").read_text()
    example = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    said: list[str] = []
    code = example.replace("PATH_OR_NAME", str(folder)).replace("max_new_tokens=200", "max_new_tokens=2")
    exec(code, {"print": said.append})
    assert len(said) == 1
    assert isinstance(said[0], str)


@pytest.mark.usefixtures("warm")
def test_bf16_is_refused_for_a_format_in_fp32(causal_run, tmp_path):
    done = export(causal_run, "--to", "hf,onnx", "--dtype", "bf16", "-o", tmp_path / "out")
    assert done.returncode == EXIT_USAGE
    assert "onnx is written in fp32 only, not bf16" in done.stderr


def test_a_decoder_is_not_told_to_pass_a_pooling_that_is_refused(chatty):
    from neobert.export.run import load_writer
    from neobert.export.source import open_source

    reason = load_writer("sentence-transformers").refusal(open_source([chatty], None))
    assert reason == "LlamaForCausalLM generates text and has no embeddings"
