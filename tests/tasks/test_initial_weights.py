"""Initial weights are loaded for every task, also for one that does nothing about them."""

import logging

import torch

from neobert.config import from_dict
from neobert.data.store.prepare import prepare
from neobert.objectives import TokenObjective
from neobert.parallel import World
from neobert.precision.recipe import FP32
from neobert.tasks.pretraining import task as pretraining
from neobert.tasks.rank_data import task_over
from neobert.tasks.token_metrics import TokenMetrics
from neobert.tasks.token_task import TokenData
from neobert.training.prepare_model import prepare_model


def build(run):
    return task_over(
        run,
        TokenData,
        objective=TokenObjective(run.backbone, targets_only=True),
        metrics=lambda: TokenMetrics(run.world.device),
        worst_case=lambda batch, **_: batch,
        probe=lambda *_: iter(()),
        targets_per_token=0.2,
    )


def weights_of(config, *, is_fresh):
    torch.manual_seed(1)
    task = prepare_model(config, prepare(config), World(FP32), is_fresh=is_fresh).task
    return {name: each.clone() for name, each in task.model.state_dict().items()}


def test_a_task_that_does_nothing_about_weights_starts_from_them(
    make_run, run, corpus, tmp_path, monkeypatch, caplog
):
    folder = make_run("first", trainer={"max_steps": 5})
    assert run(folder) == 0
    saved = folder / "checkpoints" / "5"
    values = {"trainer": {"mixed_precision": "no"}, "dataset": {"max_seq_length": 32, **corpus}}
    values |= {"tokenizer": {"path": str(saved)}, "datacollator": {"pack_sequences": True}}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    values["model"] = {**sizes, "pretrained_checkpoint": str(saved)}
    config = from_dict(values)
    monkeypatch.setattr(pretraining, "build", build)
    with caplog.at_level(logging.INFO):
        started = weights_of(config, is_fresh=True)
    assert f"loaded {len(started)} tensors from {saved}" in caplog.text
    resumed = weights_of(config, is_fresh=False)
    assert not torch.equal(started["model.encoder.weight"], resumed["model.encoder.weight"])
    from neobert.export.weights import read_weights

    for name, each in read_weights(saved).items():
        assert torch.equal(started[name], each), name
