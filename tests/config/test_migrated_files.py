"""Files in another trainer's names: keys that are translated, and keys that are kept from a profile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import ConfigError, to_dict
from neobert.config.keys import all_keys
from neobert.config.migrated_keys import rename_table
from profiles.registry import ResolvedRun, load_profile, resolve_readable, resolve_run

Read = Callable[[str], ResolvedRun | None]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_text(text: str, profile: str | None = "a100-prod") -> ResolvedRun | None:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return resolve_readable(profile, [path])

    return read_text


def value(run: ResolvedRun | None, key: str) -> Any:
    assert run is not None
    section, _, name = key.rpartition(".")
    return getattr(getattr(run.config, section) if section else run.config, name)


CARRIED = [
    ("train:\n  steps: 500\n", "trainer.max_steps", 500),
    ("train:\n  batch_size: 4\n", "trainer.per_device_train_batch_size", 4),
    ("train:\n  lr: 1e-3\n", "optimizer.lr", 1e-3),
    ("train:\n  seed: 7\n", "seed", 7),
    ("train:\n  seq_len: 512\n", "dataset.max_seq_length", 512),
    ("train:\n  seq_len: 512\n", "model.max_position_embeddings", 512),
    ("runtime:\n  use_flash: false\n", "model.attn_backend", "sdpa"),
    ("runtime:\n  use_flash: true\n", "model.attn_backend", "flash_attn_varlen"),
    ("runtime:\n  precision: fp32\n", "trainer.mixed_precision", "fp32"),
    ("runtime:\n  precision: 32\n", "trainer.mixed_precision", "fp32"),
    ("train:\n  bf16: false\n", "trainer.mixed_precision", "fp32"),
    ("train:\n  bf16: true\n", "trainer.mixed_precision", "bf16"),
    ("trainer:\n  save_every: 9\n", "trainer.save_steps", 9),
    ("trainer:\n  save_strategy: 'no'\n", "trainer.save_steps", 0),
    ("model:\n  dim: 128\n", "model.hidden_size", 128),
    ("model:\n  lr: 1e-3\n", "optimizer.lr", 1e-3),
    # what the schema refuses, what counts in another unit and what the file says in our words too stays ours
    ("model:\n  dim: wide\n", "model.hidden_size", 768),
    ("trainer:\n  save_every: 9\n  save_strategy: steps\n", "trainer.save_total_limit", 3),
    ("model:\n  dim: 128\n  hidden_size: 256\n", "model.hidden_size", 256),
    ("train:\n  warmup_ratio: 0.1\n  lr: 1e-3\n", "scheduler.warmup_percent", 10),
    ("train:\n  warmup_ratio: 0.1\n  warmup_steps: 90\n", "scheduler.warmup_percent", None),
    ("train:\n  warmup_ratio: 0.1\n  warmup_steps: 90\n", "scheduler.warmup_steps", 90),
    ("train:\n  warmup_ratio: 0.1\n  warmup_steps: 0\n", "scheduler.warmup_percent", 10),
    ("train:\n  max_grad_norm: 0\n  lr: 1e-3\n", "trainer.gradient_clipping", None),
    ("train:\n  max_grad_norm: 0.5\n  lr: 1e-3\n", "trainer.gradient_clipping", 0.5),
    ("train:\n  num_train_epochs: 3\n  lr: 1e-3\n", "trainer.max_steps", 50_000),
    ("model:\n  dim: 128\n  rope: perhaps\n", "model.rope", True),
    ("train:\n  lr: 1e-3\noptimizer:\n  betas: [0.5, 1]\n", "optimizer.betas", (0.9, 0.98)),
    ("variables: {width: 256}\nmodel:\n  dim: $variables.width\n", "model.hidden_size", 256),
]


@pytest.mark.parametrize(("text", "key", "expected"), CARRIED)
def test_values_are_carried_over(text, key, expected, read):
    assert value(read(text), key) == expected


@pytest.mark.parametrize(
    "text", ["model:\n  hiden_size: 128\n", "trainer:\n  max_steps: often\n", "nsa:\n  l: 16\n", "a: 1\n"]
)
def test_what_has_no_other_name_here_is_not_read(text, read):
    assert read(text) is None


def test_a_loop_of_its_own_that_never_speaks_of_saving_saves_nothing(read):
    run = read("model:\n  dim: 128\ntrain:\n  steps: 500\n")
    assert value(run, "trainer.save_steps") == 0
    assert run is not None
    assert run.place("trainer.save_steps").line == 3
    assert value(read("train:\n  steps: 500\n  save_every: 50\n"), "trainer.save_steps") == 50
    assert value(read("trainer:\n  steps: 500\n"), "trainer.save_steps") == 250


def test_places_are_those_of_the_file(read):
    run = read("model:\n  n_layers: 3\n")
    assert run is not None
    place = run.place("model.num_hidden_layers")
    assert (Path(place.file).name, place.line, place.column) == ("run.yaml", 2, 13)
    assert run.profile is not None
    assert run.profile.name == "a100-prod"


def test_a_section_that_the_file_lacks_is_at_no_other_key(read):
    run = read("learning_rate: 5e-4\nbatch_size: 8\nnum_train_epochs: 3\n", None)
    assert run is not None
    assert run.place("trainer.gradient_checkpointing").line == 1
    assert run.place("trainer.max_epochs").line == 3


def test_a_profile_is_never_read_in_other_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: a100-prod\nmodel:\n  dim: 128\n", encoding="utf-8")
    assert resolve_readable(None, [path]) is None


def test_no_name_and_no_value_break_the_reading(read):
    for number, name in enumerate(sorted({*rename_table()["names"], *rename_table()["keys"]})):
        section, _, last = (name if "." in name else f"train.{name}").rpartition(".")
        run = read(f"{section}:\n  {last}: {('1', 'x', '[true]')[number % 3]}\n", None)
        assert run is None or run.digest


SCALARS = st.sampled_from(["0", "-1", "true", "fp32", "1e-3", "[]", "a b", "null"])


@given(
    st.dictionaries(
        st.sampled_from(sorted({*rename_table()["names"], *(key.rpartition(".")[2] for key in all_keys())})),
        SCALARS,
    )
)
def test_whatever_is_written_a_readable_run_keeps_what_the_file_does_not_name(read, written):
    run = read("train:\n" + "".join(f"  {name}: {text}\n" for name, text in written.items()) + "  dim: 64\n")
    assert run is not None
    to_data = {
        name
        for name, way in rename_table()["names"].items()
        if "dataset.path" in way or "dataset.name" in way
    }
    names = {"name", "path", "load_all_from_disk"} | to_data
    assert run.config.dataset.name == load_profile("a100-prod").config.dataset.name or names & set(written)
    assert to_dict(run.config)["wandb"]["project"] == "neobert" or {
        "project",
        "wandb_project",
    } & set(written)


def test_a_run_is_never_resolved_from_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model:\n  dim: 128\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        resolve_run("a100-prod", [path])
