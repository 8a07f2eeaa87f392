"""One fine-tuning run of the small GLUE comparison: the same program for a folder of either side."""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys

import downstream_run
import glue_peer
import pytest
import timed_pretraining
import torch
from transformers import BertTokenizer, ModernBertConfig, ModernBertForMaskedLM

from neobert.evaluation.glue.tasks import TASKS
from neobert.export import write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "text", "is", "good", "bad"]
SHAPE = {"vocab_size": 16, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


@pytest.fixture
def ours(tmp_path, tokenizer):
    model = NeoBERTLMHead(NeoBERTConfig(**SHAPE, max_position_embeddings=128, pooling="avg"))
    files = {file.name: file.read_bytes() for file in tokenizer.glob("tokenizer*.json")}
    write_hf_folder(model, files, tmp_path / "ours")
    return tmp_path / "ours"


@pytest.fixture
def peer(tmp_path, tokenizer):
    config = ModernBertConfig(**SHAPE, intermediate_size=64, pad_token_id=0, sparse_prediction=True)
    timed_pretraining.keep_peer(ModernBertForMaskedLM(config), tokenizer, tmp_path / "peer")
    return tmp_path / "peer"


@pytest.fixture
def glue(tmp_path):
    """Sentences whose label is their last word, as `glue_small.prepare` writes them."""
    folder = tmp_path / "glue" / "data" / "cola"
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for split, count in (("train", 128), ("dev", 32)):
        rows = [
            {"text": " ".join([*draw.choices(WORDS[5:8], k=draw.randint(1, 6)), word]), "label": label}
            for word, label in (("good", "acceptable"), ("bad", "unacceptable")) * (count // 2)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "glue"


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize("side", ["ours", "peer"])
def test_either_side_learns_a_task(side, request, glue, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", "")
    model = request.getfixturevalue(side)
    chosen = argparse.Namespace(model=model, data=glue, task="cola", seed=1, lr=5e-3, folder=tmp_path / "run")
    found = downstream_run.fine_tune(chosen)
    assert (found["seed"], found["lr"]) == (1, 5e-3)
    assert found["metrics"]["mcc"] > 0.8
    assert 0 < found["step"] <= 40


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_seeds_draw_different_classifiers(peer, glue, monkeypatch):
    drawn = {}

    class NoTraining:
        def __init__(self, model, arguments, **_):
            drawn.setdefault(arguments.seed, []).append(model.classifier.weight.detach().clone())

        def train(self):
            pass

    monkeypatch.setattr(glue_peer, "Trainer", NoTraining)
    options = argparse.Namespace(model=peer, glue=glue, lr=1e-3, max_steps=None)
    for seed in (0, 1, 0):
        torch.manual_seed(7)
        with pytest.raises(SystemExit, match="no evaluation"):
            glue_peer.train(TASKS["cola"], seed, options)
    assert torch.equal(*drawn[0])
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_the_classifier_of_the_peer_pools_and_drops_as_ours(peer, ours):
    theirs, mine = (json.loads((folder / "config.json").read_text()) for folder in (peer, ours))
    assert (theirs["classifier_pooling"], theirs["sparse_prediction"]) == ("mean", False)
    assert theirs["classifier_dropout"] == mine["classifier_dropout"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_score_ends_with_the_job_that_started_it(number, tmp_path):
    (tmp_path / "launcher.py").write_text("import sys, time\nprint(1, file=sys.stderr)\ntime.sleep(60)\n")
    command = [sys.executable, downstream_run.__file__, "blimp", "model", "pairs", "--folder", "job"]
    job = subprocess.Popen([*command, "--output", "line"], stderr=subprocess.PIPE, cwd=tmp_path, text=True)
    assert job.stderr.readline() == "1\n"
    job.send_signal(number)
    job.communicate(timeout=20)  # both processes hold the pipe
    assert job.returncode == -number
