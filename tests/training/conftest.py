"""Tiny runs: a corpus of made-up words, a model of a few thousand parameters, a session in this process."""

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

from neobert.config import digest, from_dict, to_dict
from neobert.config.schema import RunConfig
from neobert.receipt import Receipt, utc_now, write_receipt
from neobert.training.loop.session import run_session
from neobert.training.loop.signals import Signals
from tests.jsonl import write_jsonl
from tests.killed_run import killed_before

TINY: dict[str, dict[str, Any]] = {
    "model": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
    },
    "tokenizer": {"vocab_size": 128},
    "dataset": {"max_seq_length": 32, "eval_samples": 12},
    "optimizer": {"lr": 1e-2},
    "trainer": {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "mixed_precision": "no",
        "save_steps": 5,
        "eval_steps": 4,
        "logging_steps": 3,
        "resume_from_checkpoint": "auto",
    },
}
# Fields that depend on the data and the arithmetic alone, as those of evaluations do; others tell the time.
EXACT = (
    "step",
    "train/loss",
    "train/learning_rate",
    "train/grad_norm",
    "train/tokens_total",
    "train/epoch",
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> dict[str, str]:
    """A text, and where it is prepared once for all tests."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def write_corpus(folder: Path) -> dict[str, str]:
    """Write documents of 3 to 40 made-up words; return the keys of the section that reads them."""
    words = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    vocabulary = ["".join(words.choices(syllables, k=words.randint(1, 3))) for _ in range(60)]
    documents = [" ".join(words.choices(vocabulary, k=words.randint(3, 40))) for _ in range(150)]
    return corpus_of(folder, documents)


def corpus_of(folder: Path, documents: list[str]) -> dict[str, str]:
    """Write documents; return the keys of the section that reads them."""
    text = write_jsonl(folder / "text.jsonl", documents)
    return {"path": str(text), "cache_dir": str(folder / "cache")}


def write_run(run_dir: Path, corpus: dict[str, str], sections: dict[str, Any]) -> Path:
    run_dir.mkdir(exist_ok=True)
    here = {"dataset": corpus, "trainer": {"output_dir": str(run_dir)}}
    return write_config(run_dir, from_dict(tiny_config(here, sections)))


def tiny_config(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a tiny run, with those of each layer in place of earlier ones."""
    config: dict[str, Any] = {}
    for layer in (TINY, *layers):
        for section, value in layer.items():
            config[section] = config.get(section, {}) | value if isinstance(value, dict) else value
    return config


def write_config(run_dir: Path, config: RunConfig) -> Path:
    """Write what a session reads: its config, and a receipt for it."""
    (run_dir / "resolved.json").write_text(json.dumps(to_dict(config)), encoding="utf-8")
    write_receipt(receipt_for(digest(config)), run_dir / "receipt.json")
    return run_dir


def receipt_for(config_digest: str) -> Receipt:
    now = utc_now()
    return Receipt(
        config_digest=config_digest,
        profile="tiny",
        code_version="0",
        created_utc=now.isoformat(),
        expires_utc=(now + timedelta(hours=1)).isoformat(),
        verdict="pass",
        levels=("static",),
        checks=(),
        waivers=(),
        hostname="here",
        versions={},
    )


def train(run_dir: Path) -> int:
    """Run a session in this process, and undo its global settings."""
    config = from_dict(json.loads((run_dir / "resolved.json").read_text(encoding="utf-8")))
    signals = Signals()
    with global_settings_restored(), signals.handle_signals():
        return run_session(config, run_dir, signals)


@contextmanager
def global_settings_restored() -> Iterator[None]:
    fills = torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fills
        AcceleratorState._reset_state(reset_partial_state=True)


def finished_run(run_dir: Path, corpus: dict[str, str], sections: dict[str, Any]) -> Path:
    """Train a run to its end."""
    assert train(write_run(run_dir, corpus, sections)) == 0
    return run_dir


@pytest.fixture
def make_run(tmp_path, corpus):
    """Write a run directory: a tiny config, changed as asked, and a receipt for it."""
    return lambda name="run", **sections: write_run(tmp_path / name, corpus, sections)


@pytest.fixture
def run():
    """Run a session in this process."""
    return train


@pytest.fixture
def killed_run(make_run):
    """Train a run, and again with a kill before a step: both end alike. Return the folder of the first."""

    def train_both(step: int, whole: Path | None = None, **sections: Any) -> Path:
        if whole is None:
            whole = make_run("whole", **sections)
            assert train(whole) == 0
        broken = make_run("broken", **sections)
        with killed_before(step):
            train(broken)
        assert exact_lines(broken) != exact_lines(whole)
        assert train(broken) == 0
        assert exact_lines(broken) == exact_lines(whole)
        first, second = (each / "checkpoints" / "latest" for each in (whole, broken))
        for file in ("model.safetensors", "trainer_state/optimizer.safetensors"):
            assert (first / file).read_bytes() == (second / file).read_bytes()
        return whole

    return train_both


@pytest.fixture(scope="session")
def finished(tmp_path_factory, corpus) -> Path:
    """The tiny run that nothing stopped."""
    return finished_run(tmp_path_factory.mktemp("finished") / "run", corpus, {})


@pytest.fixture
def source(finished, tmp_path) -> Path:
    """A copy of the tiny run, to start from or to damage."""
    return Path(shutil.copytree(finished, tmp_path / "source", symlinks=True))


@pytest.fixture(scope="session")
def uninterrupted(finished) -> list[dict[str, Any]]:
    """What the tiny run says where nothing stops it."""
    return exact_lines(finished)


def exact_lines(run_dir: Path) -> list[dict[str, Any]]:
    lines = read_lines(run_dir / "metrics.jsonl")
    return [
        {name: value for name, value in line.items() if name in EXACT or name.startswith("eval/")}
        for line in lines
    ]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def metrics():
    """Read the lines of a run's metrics."""
    return lambda run_dir: read_lines(run_dir / "metrics.jsonl")


@pytest.fixture
def exact():
    """Read what two runs with the same data and arithmetic share to the last bit."""
    return exact_lines


@pytest.fixture
def beats():
    """Read a rank's heartbeat."""
    return lambda run_dir, rank=0: read_lines(run_dir / f"heartbeat_rank{rank}.jsonl")


@pytest.fixture
def outcome():
    """Read how the last session ended."""
    return lambda run_dir: json.loads((run_dir / "outcome.json").read_text(encoding="utf-8"))
