"""Steps from epochs: what the plan derives from the lines of the training files, and what it assumes."""

import os
from dataclasses import replace

import pytest

from neobert.config import from_dict, to_dict
from neobert.config.schema import RunConfig
from neobert.plan import assumptions_for, build_plan
from neobert.plan.epoch_size import epoch_size
from neobert.plan.epochs import epoch_steps

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
    assert (
        "3 epochs x 13 microbatches / 2 microbatches per step; 100 texts in batches of 8"
        in plan.max_steps.reason
    )
    assert plan.schedule.decay_end == plan.decay_end.value == plan.save_interval_steps.value == 20
    assert plan.total_tokens.value == round(20 * 8 * 2 * 64 * plan.fill.value)
    assert plan.eta_s.value < build_plan(config, CPU).eta_s.value / 40


def test_fewer_steps_than_the_epochs_take_are_the_bound(tmp_path):
    plan = planned(classify(write(tmp_path / "train.tsv", 100), max_steps=15))
    assert plan.max_steps.value == 15
    assert plan.max_steps.reason.startswith("trainer.max_steps, fewer than 20 steps of trainer.max_epochs: 3")


def test_packed_texts_have_the_length_of_the_rows_of_the_files(tmp_path):
    """Of short texts a row holds many: with a text in each row the run had seven times as many steps."""
    path = tmp_path / "train.tsv"
    path.write_text("sentence\tlabel\n" + "six words of a short text\t1\n" * 1_000)
    epoch = epoch_size(classify(path, packed=True))
    assert epoch.num_microbatches == 18  # 28 bytes, 9 tokens: 9,000 in 8 x 64 of 0.99 fill
    assert "1,000 texts of about 9 tokens, from 28 bytes per row at 4 bytes per token" in epoch.source
    path.write_text("sentence\tlabel\n" + f"{'a long text ' * 100}\t1\n" * 100)
    assert epoch_size(classify(path, packed=True)).num_microbatches == 13, "cut at 64 tokens"


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


def pretrain(path, **changes) -> RunConfig:
    packed = {"packed": True, "max_epochs": None} | changes
    return from_dict(to_dict(classify(path, **packed)) | {"task": "pretrain"})


def sized(path, num_bytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, num_bytes)
    return path


def test_the_passes_over_a_text_are_estimated_from_its_bytes(tmp_path):
    path = sized(tmp_path / "text.txt", 40_000)  # 10,000 tokens in microbatches of 8 x 64 at 0.99 fill
    plan = planned(pretrain(path))
    assert (plan.max_steps.value, plan.epochs.value) == (1000, 2000 / 20)
    assert plan.epochs.reason.startswith("2,000 microbatches / 20 in an epoch; about 10,000 tokens")
    chat = from_dict(to_dict(pretrain(sized(tmp_path / "talks.jsonl", 50_000))) | {"task": "sft"})
    assert "about 10,000 tokens, from 50,000 bytes at 5 bytes per token" in planned(chat).epochs.reason
    held_out = {"validation_split": 0.5}
    assert planned(pretrain(path, dataset=held_out)).epochs.value == 2000 / 10
    bound = planned(pretrain(path, max_epochs=3.0))
    assert (bound.max_steps.value, bound.epochs.value) == (30, 3)
    assert bound.eta_s.value < plan.eta_s.value / 30


def test_an_evaluation_takes_no_longer_than_the_text_that_is_held_out(tmp_path):
    path = sized(tmp_path / "text.txt", 40_000)
    plan = planned(pretrain(path, dataset={"validation_split": 0.2}, eval_max_batches=100, eval_steps=500))
    each_s = 2_000 / plan.tokens_per_second.value / 3
    assert f"+ 3 evaluations x {each_s:.3g} s" in plan.eta_s.reason
    other = {"validation_split": 0.2, "eval_split": "test"}
    assert "of unknown size" in planned(pretrain(path, dataset=other)).eta_s.reason


def test_of_a_folder_of_text_the_files_count_that_are_read(tmp_path):
    for name in ("a.txt", "below/b.jsonl", "train.txt"):
        sized(tmp_path / name, 2_000)
    for name in ("labels.csv", "test.txt", "dev/c.txt", ".hidden/d.txt", "e.pdf"):
        sized(tmp_path / name, 10**9)
    assert epoch_size(pretrain(tmp_path)).num_microbatches == 3


@pytest.mark.parametrize("name", ["a.txt.gz", "a.parquet", "a.txt"])
def test_text_of_unknown_size_is_not_guessed(tmp_path, name):
    sized(tmp_path / name, 10**9)
    streamed = {"dataset": {"streaming": True}} if name == "a.txt" else {}
    plan = planned(pretrain(tmp_path, max_epochs=3.0, **streamed))
    assert (plan.epochs.value, plan.max_steps.value) == (None, 1000)


def test_the_least_run_is_one_step():
    trainer = classify("x", max_epochs=0.01).trainer
    assert epoch_steps(trainer, 10, 4) == 1
