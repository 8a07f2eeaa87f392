"""What may change between the sessions of one run, and what makes it another."""

import subprocess
import sys

import pytest

from neobert.runfiles.resume_policy import (
    MICROBATCHES,
    MIXED,
    WARMED_UP_BY,
    runtime_differences,
    structural_differences,
)

SAVED = {
    "seed": 0,
    "task": "pretrain",
    "model": {"hidden_size": 64, "attn_backend": "auto", "pretrained_checkpoint": None},
    "tokenizer": {"path": "a", "max_length": None},
    "dataset": {"name": "builtin:python-docs", "num_workers": 1, "streaming_read_retries": 4},
    "datacollator": {"mlm_probability": 0.2},
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "trainer": {"max_steps": 10, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "distributed": {"nproc_per_node": 1, "nnodes": 1},
    "variables": {"width": 64},
}


def changed(key, value):
    section, _, name = key.rpartition(".")
    if not section:
        return SAVED | {name: value}
    return SAVED | {section: SAVED[section] | {name: value}}


def test_a_model_of_another_type_is_one_difference_in_the_words_of_a_run_file():
    model = {"type": "hf", "hidden_size": None, "architecture": "llama"}
    other = SAVED | {"model": model, "tokenizer": {"path": "a", "max_length": 64}}
    assert [*map(str, structural_differences(SAVED, other))] == [
        "model.type: 'neobert' in the checkpoint, 'hf' in this run",
        "tokenizer.max_length: null in the checkpoint, 64 in this run",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("task", "glue"),
        ("model.hidden_size", 128),
        ("tokenizer.max_length", 64),
        ("dataset.name", "other"),
        ("datacollator.mlm_probability", 0.3),
        ("optimizer.name", "muon"),
        ("trainer.per_device_train_batch_size", 8),
    ],
)
def test_structural_keys_are_named(key, value):
    (difference,) = structural_differences(SAVED, changed(key, value))
    assert difference.key == key
    assert f"{value!r} in this run" in str(difference)
    assert runtime_differences(SAVED, changed(key, value)) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer.lr", 1e-4),
        ("trainer.max_steps", 20),
        ("model.attn_backend", "sdpa"),
        ("model.pretrained_checkpoint", "elsewhere"),
        ("model.init", "scaled"),
        ("tokenizer.path", "b"),
        ("dataset.path", "b.txt"),
        ("dataset.num_workers", 4),
        ("dataset.streaming_read_retries", 9),
        ("variables", {}),
    ],
)
def test_runtime_keys_may_change(key, value):
    assert structural_differences(SAVED, changed(key, value)) == ()
    (difference,) = runtime_differences(SAVED, changed(key, value))
    assert difference.key == key


def test_a_key_that_only_one_side_has_counts():
    (difference,) = structural_differences(SAVED, changed("model.ngpt", True))
    assert difference.saved == "absent"


def test_a_key_that_an_older_version_had_not_was_its_default():
    assert "revision" not in SAVED["dataset"]
    assert structural_differences(SAVED, changed("dataset.revision", None)) == ()
    (difference,) = structural_differences(SAVED, changed("dataset.revision", "0ff1ce"))
    assert (difference.key, difference.saved) == ("dataset.revision", None)
    assert structural_differences(SAVED, changed("model.attention_dropout", None)) == ()


def test_the_microbatches_of_a_step_may_be_split_anew_over_processes():
    two_ranks = changed("trainer.gradient_accumulation_steps", 1) | {
        "distributed": {"nproc_per_node": 2, "nnodes": 1}
    }
    assert structural_differences(SAVED, two_ranks) == ()
    (difference,) = structural_differences(SAVED, changed("trainer.gradient_accumulation_steps", 4))
    assert (difference.key, difference.saved, difference.current) == (MICROBATCHES, 2, 4)


def test_the_shares_of_a_mixture_are_kept_and_its_paths_are_not():
    def mixed(*corpora):
        return changed("dataset.mixture", [{"path": path, "weight": weight} for path, weight in corpora])

    saved = mixed(("books", 3.0), ("web", 1.0))
    assert structural_differences(saved, mixed(("moved", 1.5), ("web", 0.5))) == ()
    (difference,) = structural_differences(saved, mixed(("books", 1.0), ("web", 1.0)))
    assert (difference.key, difference.saved, difference.current) == (MIXED, [0.75, 0.25], [0.5, 0.5])
    (edited,) = structural_differences(mixed(("books", 0.0), ("web", 0.0)), saved)
    assert (edited.key, edited.saved) == (MIXED, [0.0, 0.0])


def test_the_keys_of_a_tokenizer_that_both_runs_train_are_kept():
    trained = changed("tokenizer.path", None)
    larger = trained | {"tokenizer": trained["tokenizer"] | {"vocab_size": 2048}}
    (difference,) = structural_differences(trained, larger)
    assert (difference.key, difference.current) == ("tokenizer.vocab_size", 2048)
    assert runtime_differences(trained, larger) == ()
    assert structural_differences(SAVED, changed("tokenizer.vocab_size", 2048)) == ()
    assert structural_differences(larger, SAVED) == (), "an existing tokenizer is compared by its content"


def test_a_batch_size_warm_up_keeps_the_number_of_ranks():
    """Its first steps have one microbatch per rank."""
    warming = changed("trainer.batch_size_warmup_steps", 5)
    split = warming["trainer"] | {"gradient_accumulation_steps": 1}
    two_ranks = warming | {"trainer": split, "distributed": {"nproc_per_node": 2, "nnodes": 1}}
    (difference,) = structural_differences(warming, two_ranks)
    assert (difference.key, difference.saved, difference.current) == (WARMED_UP_BY, [1, 1], [2, 1])


def test_the_length_of_pieces_counts_in_a_run_that_has_some():
    length, steps = (f"trainer.sequence_length_warmup_{name}" for name in ("length", "steps"))
    assert structural_differences(SAVED, changed(length, 32)) == ()
    cut = changed(steps, 9)
    (difference,) = structural_differences(
        cut, cut | {"trainer": cut["trainer"] | {length.split(".")[1]: 32}}
    )
    assert (difference.key, difference.saved, difference.current) == (length, 64, 32)


def test_probes_may_import_what_is_light():
    code = (
        "import sys; from neobert.runfiles import resume_policy;"
        "from neobert.training.telemetry import jsonl_writer;"
        "from neobert.runfiles.checkpoint import folders;"
        "sys.exit(bool({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
