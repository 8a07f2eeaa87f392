"""Limits on sizes and memory: just at them, and just beyond."""

import re
from dataclasses import replace
from math import inf, nextafter
from typing import Any

import pytest

from neobert.families.shape import ModelShape
from neobert.families.table import model_shape
from neobert.plan import build_plan
from neobert.plan.vocabulary import TokenizerSize
from tests.validators.judging import (
    found,
    run_of,
    with_facts,
    with_part,
)
from validators.planning import plan_assumptions
from validators.rules.model import _head_violations, _most_reduced_key, _vocabulary_violations


@pytest.mark.parametrize(("ratio", "count"), [(0.5, 0), (0.499, 1), (1.5, 0), (1.501, 1)])
def test_memory_as_predicted(ratio, count):
    parts = ("weights_mib", "gradients_mib", "optimizer_mib", "activations_mib", "logits_mib", "runtime_mib")
    plan = dict.fromkeys(parts, 0.0) | {"weights_mib": 10_000.0}
    facts = with_part("memory", peak_allocated_mib=int(10_000 * ratio), context_mib=0, peak_reserved_mib=0)
    output = [one for one in found("MEM002", run_of(), facts, **plan) if "predicted" in one.message]
    assert len(output) == count


@pytest.mark.parametrize(("growth", "count"), [(2.0, 0), (2.001, 1)])
def test_growth_of_a_hundredth_in_fifty_steps(growth, count):
    facts = with_part("memory", peak_allocated_mib=10_000, growth_mib_per_step=growth)
    assert len(found("MEM003", run_of(), facts)) == count


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ((768, 7, 3072), "num_hidden_layers"),
        ((384, 28, 3072), "hidden_size"),
        ((768, 28, 256), "intermediate_size"),
    ],
)
def test_the_key_that_took_most_is_named(sizes, key):
    names = ("hidden_size", "num_hidden_layers", "intermediate_size")
    small = shape_with(**dict(zip(names, sizes, strict=True)))
    assert _most_reduced_key(small, shape_with()) == f"model.{key}"


def shape_with(**changes: Any) -> ModelShape:
    config = run_of().config
    return model_shape(replace(config, model=replace(config.model, **changes)), 128)


@pytest.mark.parametrize(
    ("hidden", "on_gpu", "output"),
    [
        (256, True, 0),
        (257, False, 1),
        (264, True, 1),
        (255, False, 1),
        (6, False, 0),
        (3, False, 1),
        (1, False, 1),
    ],
)
def test_heads_that_kernels_take_and_that_turn_in_pairs(hidden, on_gpu, output):
    size = {"hidden_size": hidden, "num_attention_heads": 1}
    assert len(list(_head_violations(shape_with(**size, rope=True), runs_own_kernels=on_gpu))) == output
    assert len(list(_head_violations(shape_with(**size, rope=False), runs_own_kernels=False))) == 0


@pytest.mark.parametrize(
    ("num_tokens", "num_inert", "of_weights", "path", "hint"),
    [
        (4000, 0, True, "", ""),  # no multiple of 128, but the rows are those of the weights
        (4096, 96, True, "", ""),
        (4096, 95, True, "model.pretrained_checkpoint", "set tokenizer.path to the tokenizer of model.pretr"),
        (4096, 0, False, "", ""),
        (4097, 1, False, "model.vocab_size", "remove model.vocab_size: the default is the size of the token"),
    ],
)
def test_the_model_has_a_row_for_each_token_of_the_text(
    num_tokens, num_inert, of_weights, path, hint, tmp_path
):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 4000}', encoding="utf-8")
    weights = ("model.type=hf", f"model.config={tmp_path}", f"model.pretrained_checkpoint={tmp_path}")
    keys = weights if of_weights else ("model.vocab_size=4096",)
    tokenizer = TokenizerSize(num_tokens, "a tokenizer", num_inert=num_inert)
    output = list(_vocabulary_violations(run_of(*keys), tokenizer))
    assert [one.path for one in output] == [path] * bool(path)
    assert all(one.hint.startswith(hint) for one in output)
    with_own_tokenizer = run_of(*keys, f"tokenizer.path={tmp_path}", "tokenizer.name=null")
    output = list(_vocabulary_violations(with_own_tokenizer, tokenizer))
    assert any(
        f"copy the tokenizer of {tmp_path} again, or give the model rows" in one.hint for one in output
    ) == (num_inert == 95)


def test_a_tokenizer_whose_file_is_damaged_is_named_at_its_key(tmp_path):
    """Its size is assumed, so that the rows of the model are not compared with it."""
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 2}}}', encoding="utf-8")
    keys = ("model.vocab_size=128", f"tokenizer.path={tmp_path}", "tokenizer.name=null")
    (one,) = found("MOD002", run_of(*keys))
    assert (one.path, "has ids up to 2 for 2 tokens" in one.message) == ("tokenizer.path", True)


def other_memory(is_on: bool, *overrides: str) -> float:
    run = run_of(f"trainer.gradient_checkpointing={str(not is_on).lower()}", *overrides)
    return build_plan(run.config, plan_assumptions(run)).memory_mib.value


@pytest.mark.parametrize(("step", "count"), [(0.0, 0), (1.0, 1)])
def test_checkpointing_that_would_leave_half_of_the_device_empty(step, count):
    device = 2 * other_memory(True) + step
    run = run_of("trainer.gradient_checkpointing=true")
    assert len(found("MOD003", run, device_memory_mib=device)) == count


@pytest.mark.parametrize(("more", "count"), [(0.0, 0), (0.5, 1)])
def test_checkpointing_that_would_make_it_fit(more, count):
    device = 100_000.0
    run = run_of("trainer.gradient_checkpointing=false", "model.kernel_backend=torch")
    output = found("MOD003", run, device_memory_mib=device, memory_mib=0.9 * device + more)
    assert len(output) == count
    assert all("and model.kernel_backend to torch" not in one.hint for one in output)


def device_filled_by(*overrides: str, profile: str) -> float:
    """MiB of a device of which the run needs exactly 90 %."""
    run = run_of(*overrides, profile=profile)
    needed = build_plan(run.config, plan_assumptions(run)).memory_mib.value
    near = needed / 0.9
    return next(size for size in (near, nextafter(near, 0), nextafter(near, inf)) if 0.9 * size == needed)


@pytest.mark.parametrize(("step", "count"), [(0.0, 1), (-0.01, 0)])
def test_checkpointing_that_would_just_fit_is_offered(step, count):
    rows = "trainer.per_device_train_batch_size=32"
    device = device_filled_by("trainer.gradient_checkpointing=true", rows, profile="a100-prod")
    run = run_of("trainer.gradient_checkpointing=false", rows)
    assert len(found("MOD003", run, device_memory_mib=device + step, memory_mib=2 * device)) == count


LARGE = ("trainer.per_device_train_batch_size=256", "trainer.gradient_accumulation_steps=1")
LOWER, SHORTEN = (
    "lower trainer.per_device_train_batch_size and raise trainer.gradient_accumulation_steps",
    "lower dataset.max_seq_length, or use a smaller model",
)
RECOMPUTE = "set trainer.gradient_checkpointing to true"


def test_what_is_advised_where_the_kernels_recompute_nothing_is_accepted():
    requested = (*LARGE, "trainer.gradient_checkpointing=true")
    assert found("ATT005", run_of(*requested, profile="h200-prod"))
    run = run_of(*requested, "model.kernel_backend=torch", profile="h200-prod")
    assert [found(code, run) for code in ("MEM001", "ATT005", "MOD003")] == [[], [], []]


def test_a_batch_of_one_row_cannot_be_lowered():
    run = run_of("trainer.per_device_train_batch_size=2")
    (one,) = found("MEM001", run, with_facts("rehearsal", out_of_memory="no room"))
    assert one.hint == f"{LOWER}, or {RECOMPUTE} and model.kernel_backend to torch"
    run = run_of("trainer.per_device_train_batch_size=1")
    (one,) = found("MEM001", run, with_facts("rehearsal", out_of_memory="no room"))
    assert one.hint == f"{RECOMPUTE} and model.kernel_backend to torch"
    recomputed = run_of("trainer.per_device_train_batch_size=1", "trainer.gradient_checkpointing=true")
    (one,) = found("MEM001", recomputed, with_facts("rehearsal", out_of_memory="no room"))
    assert one.hint == SHORTEN


@pytest.mark.parametrize(("step", "hint"), [(0.0, LOWER), (-1.0, SHORTEN)])
def test_fewer_rows_are_advised_where_one_row_fits(step, hint):
    keys, rows = "trainer.gradient_checkpointing=true", "trainer.per_device_train_batch_size"
    device = device_filled_by(keys, f"{rows}=1", profile="a100-prod") + step
    (one,) = found("MEM001", run_of(keys, f"{rows}=32"), device_memory_mib=device)
    assert one.hint == hint


@pytest.mark.parametrize(
    ("step", "hint"), [(0.0, f"{LOWER}, or {RECOMPUTE} and model.kernel_backend to torch"), (-1.0, LOWER)]
)
def test_recomputation_is_predicted_with_the_kernels_that_recompute(step, hint):
    keys = ("trainer.gradient_checkpointing=true", "model.kernel_backend=torch")
    device = device_filled_by(*LARGE, *keys, profile="h200-prod") + step
    (one,) = found("MEM001", run_of(*LARGE, profile="h200-prod"), device_memory_mib=device)
    assert one.hint == hint


@pytest.mark.parametrize("hidden", [64, 100, 113, 765, 768, 770])
@pytest.mark.parametrize("heads", [1, 3, 4, 12, 113])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_sizes_of_a_hint_are_legal(hidden, heads, on_gpu):
    shape = shape_with(hidden_size=hidden, num_attention_heads=heads)
    for one in _head_violations(shape, runs_own_kernels=on_gpu):
        key, values = re.match(r"set model\.(\w+) to ([\d, or]+)[,;]", one.hint).groups()
        for value in map(int, re.findall(r"\d+", values)):
            sizes = {"hidden_size": hidden, "num_attention_heads": heads} | {key: value}
            assert [*_head_violations(shape_with(**sizes), runs_own_kernels=on_gpu)] == []


def test_the_attention_of_transformers_takes_any_head_size():
    sizes = ("model.hidden_size=240", "model.num_attention_heads=12")
    (finding,) = found("MOD002", run_of(*sizes))
    assert "head size 20 is not supported" in finding.message
    assert found("MOD002", run_of("model.type=hf", "model.architecture=bert", *sizes)) == []
