"""Steps from epochs: what the plan derives from the lines of the training files, and what it assumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neobert.config import from_dict, to_dict
from neobert.config.schema import RunConfig
from neobert.plan import assumptions_for, build_plan
from neobert.plan.epochs import epoch_size, epoch_steps

CPU = assumptions_for(None, None, 0.3)


def classify(path, **changes) -> RunConfig:
    content = to_dict(RunConfig())
    content |= {"task": "classification"}
    content["dataset"] |= {"path": str(path), "max_seq_length": 64} | changes.pop("dataset", {})
    content["datacollator"] |= {"pack_sequences": changes.pop("packed", False), "max_length": 64}
    content["trainer"] |= {
        "max_steps": 1000,
        "max_epochs": 3.0,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
    } | changes
    return from_dict(content)


def write(path, num_texts, header="sentence\tlabel\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "a text\t1\n" * num_texts)
    return path


def planned(config):
    return build_plan(config, replace(CPU, epoch=epoch_size(config)))


def test_the_steps_of_the_epochs_bound_the_whole_plan(tmp_path):
    config = classify(write(tmp_path / "train.tsv", 100), save_steps=0)
    plan = planned(config)
    # 100 texts in batches of 8: 13 microbatches an epoch, 39 in three, two to a step.
    assert plan.max_steps.value == 20
    assert "3 epochs x 13 microbatches / 2 per step; 100 texts in batches of 8" in plan.max_steps.reason
    assert plan.schedule.decay_end == plan.decay_end.value == plan.save_interval_steps.value == 20
    assert plan.total_tokens.value == round(20 * 8 * 2 * 64 * plan.fill.value)
    assert plan.eta_s.value < build_plan(config, CPU).eta_s.value / 40


def test_fewer_steps_than_the_epochs_take_are_the_bound(tmp_path):
    plan = planned(classify(write(tmp_path / "train.tsv", 100), max_steps=15))
    assert plan.max_steps.value == 15
    assert plan.max_steps.reason.startswith("trainer.max_steps, below 20 steps of trainer.max_epochs: 3")


def test_packed_texts_have_an_assumed_length(tmp_path):
    config = classify(write(tmp_path / "train.tsv", 100), packed=True)
    epoch = epoch_size(config)
    assert epoch.num_microbatches == 13  # 100 x 64 tokens in 8 x 64 of 0.99 fill
    assert "100 texts of about 64 tokens, assumed" in epoch.source


@pytest.mark.parametrize(
    ("dataset", "texts"),
    [
        ({"eval_samples": 20}, 80),
        ({"validation_split": 0.1}, 90),
        ({"eval_split": "dev"}, 100),
        ({"column_names": ("sentence", "label")}, 101),
    ],
)
def test_texts_that_are_held_out_are_not_trained_on(tmp_path, dataset, texts):
    config = classify(write(tmp_path / "some.tsv", 100), per_device_train_batch_size=1, dataset=dataset)
    assert epoch_size(config).num_microbatches == texts


def test_of_a_folder_the_training_files_count(tmp_path):
    for name, num_texts in (("train-0.tsv", 5), ("train-1.jsonl", 7), ("dev.tsv", 50), ("trainers.tsv", 50)):
        write(tmp_path / name, num_texts, header="" if name.endswith("jsonl") else "h\n")
    assert epoch_size(classify(tmp_path, per_device_train_batch_size=1)).num_microbatches == 12


@pytest.mark.parametrize("name", ["train.parquet", "train.tsv.gz", "text.tsv", "missing/train.tsv"])
def test_where_the_files_do_not_tell_the_plan_says_what_it_assumes(tmp_path, name):
    if "missing" not in name:
        write(tmp_path / name, 10)
    plan = planned(classify(tmp_path / "missing" if "missing" in name else tmp_path))
    assert plan.max_steps.value == 1000
    assert "trainer.max_epochs may end the run earlier" in plan.max_steps.reason
    assert "not known before the data is prepared" in plan.max_steps.reason


def test_without_epochs_or_whole_texts_no_file_is_read(tmp_path):
    path = write(tmp_path / "train.tsv", 10)
    assert epoch_size(classify(path, max_epochs=None)) is None
    assert epoch_size(classify(path, dataset={"train_split": "train[:5]"})) is None
    content = to_dict(classify(path)) | {"task": "pretrain"}
    assert epoch_size(from_dict(content)) is None


def test_the_least_run_is_one_step():
    trainer = classify("x", max_epochs=0.01).trainer
    assert epoch_steps(trainer, 10, 4) == 1
