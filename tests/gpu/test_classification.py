"""Classification on a CUDA device: the losses of fp32 on the CPU, packed and padded, also after a resume."""

import json
import random

import pytest
import torch
from accelerate.state import AcceleratorState

from neobert.config import from_dict
from neobert.training.loop.session import run_session
from neobert.training.loop.signals import Signals
from tests.killed_run import killed_before
from tests.training.conftest import read_lines, write_config

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler and of foreign kernels
STEPS = 20


@pytest.fixture(autouse=True)
def _fresh():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Texts of 3 to 90 words, one of which decides the label."""
    folder, draw = tmp_path_factory.mktemp("reviews"), random.Random(0)
    rows = []
    for _ in range(600):
        label = draw.randint(0, 1)
        words = draw.choices(("the", "film", "is", "a", "very", "long", "story"), k=draw.randint(2, 90))
        rows.append({"text": " ".join([*words, ("dull", "fine")[label]]), "label": label})
    (folder / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {"path": str(folder / "reviews.jsonl"), "cache_dir": str(folder / "cache")}


@pytest.fixture
def train(tmp_path, reviews):
    """Train in this process; return the loss of every step that the run directory has."""

    def run(name, *, is_packed, precision="bf16", is_compiled=False):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        config = from_dict(
            {
                "task": "classification",
                "classification": {"dropout": 0.0},
                "model": {
                    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "intermediate_size": 768,
                },
                "tokenizer": {"vocab_size": 256},
                "dataset": {
                    **reviews, "max_seq_length": 128, "long_documents": "truncate", "eval_samples": 40,
                },
                "datacollator": {"pack_sequences": is_packed},
                "optimizer": {"lr": 1e-4},
                "trainer": {
                    "output_dir": str(folder), "max_steps": STEPS, "per_device_train_batch_size": 8,
                    "gradient_accumulation_steps": 2, "mixed_precision": precision, "save_steps": 10,
                    "eval_steps": 0, "logging_steps": 1, "torch_compile": is_compiled,
                    "resume_from_checkpoint": "auto",
                },
            }
        )  # fmt: skip
        write_config(folder, config)
        try:
            assert run_session(config, folder, Signals()) == 0
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
        lines = read_lines(folder / "metrics.jsonl")
        return [line["train/loss"] for line in lines if "train/loss" in line], folder

    return run


@pytest.mark.parametrize("is_packed", [True, False])
def test_losses_are_those_of_fp32_and_a_killed_run_resumes(train, monkeypatch, is_packed):
    found, folder = train("gpu", is_packed=is_packed)
    assert len(found) == STEPS
    beat = read_lines(folder / "heartbeat_rank0.jsonl")[-1]
    assert (beat["attention_kernel"] == "sdpa") is not is_packed

    with killed_before(14):
        train("broken", is_packed=is_packed)
    resumed, _ = train("broken", is_packed=is_packed)
    assert resumed == pytest.approx(found, rel=1e-3)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    exact, _ = train("cpu", is_packed=is_packed, precision="no")
    assert found == pytest.approx(exact, rel=2e-2)


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_compiled_encoder_learns_the_same(train, is_packed):
    eager, _ = train("eager", is_packed=is_packed)
    compiled, _ = train("compiled", is_packed=is_packed, is_compiled=True)
    assert compiled == pytest.approx(eager, rel=1e-2)
