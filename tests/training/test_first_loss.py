"""The loss before the first step against the last evaluation of the run that the weights are from."""

import json

import pytest
import torch

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.metric_names import EVAL_LOSS, SOURCE_LOSS
from neobert.tasks.weights import load_initial_weights
from neobert.training.guards.first_loss import CODE
from tests.training.conftest import corpus_of, finished_run, read_lines, write_run

MODEL = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": None}
PARENT = {
    "model": MODEL,
    "dataset": {"max_seq_length": 16},
    "trainer": {"max_steps": 120, "save_steps": 120, "eval_steps": 120, "per_device_eval_batch_size": 8},
}
LOAD = "neobert.training.prepare_model.load_initial_weights"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents of consecutive words of a circle: a masked one follows from its neighbours."""
    folder = tmp_path_factory.mktemp("circle")
    words = [f"{first}{second}" for first in "bdfgk" for second in "aeiou"]
    texts = [" ".join(words[(start + each) % len(words)] for each in range(12)) for start in range(300)]
    return corpus_of(folder, texts)


@pytest.fixture(scope="module")
def parent(tmp_path_factory, corpus):
    """A run that has learned the circle, on rows of 16 tokens."""
    return finished_run(tmp_path_factory.mktemp("parent") / "first", corpus, PARENT)


@pytest.fixture
def extended(tmp_path, corpus, parent):
    """Write a run from these weights on other text, in rows of 32 tokens."""

    def write(**sections):
        texts = (" ".join(["mu", "ka"[number % 2 :]] * 9) for number in range(200))
        (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
        new = {"path": str(tmp_path / "new.jsonl"), "cache_dir": corpus["cache_dir"], "max_seq_length": 32}
        weights = str(parent / "checkpoints" / "120")
        base = {
            "model": {**MODEL, "pretrained_checkpoint": weights},
            "tokenizer": {"path": weights, "vocab_size": None},
            "trainer": {"eval_source_path": weights, "max_steps": 1},
        }
        merged = {key: {**base.get(key, {}), **sections.get(key, {})} for key in {*base, *sections}}
        return write_run(tmp_path / "second", new, merged)

    return write


def losses(run_dir, name):
    return [row[name] for row in read_lines(run_dir / "metrics.jsonl") if name in row]


@pytest.mark.parametrize("place", ["checkpoints/120", "."])
def test_the_evaluation_of_the_parent_is_repeated_in_longer_rows(extended, parent, run, place):
    run_dir = extended(trainer={"eval_source_path": str(parent / place)})
    assert run(run_dir) == 0
    assert losses(run_dir, SOURCE_LOSS)[0] == pytest.approx(losses(parent, EVAL_LOSS)[-1], rel=1e-6)


def random_weights(_config, _tokenizer, _backbone):
    pass


def without_a_block(config, tokenizer, backbone):
    load_initial_weights(config, tokenizer, backbone)
    with torch.no_grad():
        for name, weight in backbone.blocks[0].named_parameters():
            if name.endswith(("wo.weight", "w3.weight")):
                weight.zero_()


def another_base(config, tokenizer, backbone):
    load_initial_weights(config, tokenizer, backbone)
    backbone.model.config.rope_theta = 1.0


@pytest.mark.parametrize("mutant", [random_weights, without_a_block, another_base])
def test_a_model_that_is_not_the_parent_fails_before_the_first_step(extended, run, monkeypatch, mutant):
    monkeypatch.setattr(LOAD, mutant)
    with pytest.raises(ProjectError, match=r"above the .* of .*checkpoints/120 \(limit 1.7%\)") as caught:
        run(extended())
    assert (caught.value.code, caught.value.exit_code) == (CODE, EXIT_TRAINING_FAILED)


@pytest.mark.parametrize(
    "sections",
    [{"datacollator": {"mlm_probability_eval": 0.3}}, {"trainer": {"eval_max_batches": 1}}],
)
def test_an_evaluation_of_other_targets_is_not_compared(extended, run, monkeypatch, sections):
    monkeypatch.setattr(LOAD, random_weights)
    assert run(extended(**sections)) == 0
