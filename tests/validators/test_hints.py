"""A hint that names a key and a value mends what it stands beside."""

import re
from dataclasses import replace

import pytest

from neobert.config import to_dict
from neobert.config.canonical import to_json
from profiles.registry import resolve_run
from tests.validators.judging import found, run_of, with_facts, with_part, with_prepared
from validators.facts_run import PluginFacts, PluginFailure, PreparationErrorFacts
from validators.facts_text import TextFacts
from validators.planning import plan_run
from validators.rule import CannotTellError

VALUES = re.compile(r"set ([a-z_]+\.[a-z_]+) to (\d+)")


@pytest.mark.parametrize(
    ("code", "profile", "overrides", "keys"),
    [
        ("SCH001", "cpu-demo", ("trainer.max_steps=20",), ["scheduler.warmup_steps"]),
        ("SCH001", "cpu-demo", ("scheduler.warmup_percent=100",), ["scheduler.warmup_percent"]),
        ("SCH001", "cpu-demo", ("scheduler.warmup_steps=360",), ["scheduler.warmup_steps"]),
        (
            "BUD001",
            "a100-prod",
            ("guard.walltime_limit_hours=30",),
            ["trainer.max_steps", "guard.walltime_limit_hours"],
        ),
        ("BUD001", "a100-prod", ("guard.walltime_limit_hours=0.0001",), ["guard.walltime_limit_hours"]),
        ("BUD001", "a100-prod", ("trainer.max_steps=5000",), ["trainer.max_steps"]),
        (
            "BUD002",
            "a100-prod",
            ("trainer.gradient_accumulation_steps=3",),
            ["trainer.gradient_accumulation_steps", "trainer.global_batch_size"],
        ),
        ("BUD002", "a100-prod", ("trainer.per_device_train_batch_size=9",), ["trainer.global_batch_size"]),
    ],
)
def test_the_value_that_a_hint_names_ends_the_finding(code, profile, overrides, keys):
    (one,) = found(code, run_of(*overrides, profile=profile))
    reported = VALUES.findall(one.hint)
    assert [key for key, _ in reported] == keys
    for key, value in reported:
        assert found(code, run_of(*overrides, f"{key}={value}", profile=profile)) == []


@pytest.mark.parametrize(
    ("max_steps", "output"),
    [
        (1, "raise trainer.max_steps above 1"),
        (3, "set trainer.save_steps to 1"),
        (5, "set trainer.save_steps to 2 or less, but above 0"),
    ],
)
def test_a_first_save_is_advised_in_the_first_half(max_steps, output):
    steps = (f"trainer.max_steps={max_steps}", f"trainer.save_steps={max_steps}")
    (one,) = found("CKP001", run_of(*steps, profile="a100-prod"))
    assert one.hint == output


@pytest.mark.parametrize(
    ("overrides", "output"),
    [
        (("scheduler.warmup_steps=1980",), "set scheduler.warmup_steps to 99 (5 % of the run)"),
        (("scheduler.warmup_percent=100",), "set scheduler.warmup_percent to 5 (5 % of the run)"),
    ],
)
def test_a_usual_warmup_is_advised_in_the_key_that_was_used(overrides, output):
    (one,) = found("SCH001", run_of("trainer.max_steps=1980", *overrides, profile="cpu-demo"))
    assert one.hint == output


@pytest.mark.parametrize("every", [0, 10, 1000])
def test_the_steps_that_are_advised_fit_with_their_evaluations(every):
    rare = ("guard.walltime_limit_hours=30", f"trainer.eval_steps={every}")
    (one,) = found("BUD001", run_of(*rare, profile="a100-prod"))
    fewer = f"trainer.max_steps={VALUES.findall(one.hint)[0][1]}"
    assert [
        each for each in found("BUD001", run_of(*rare, fewer, profile="a100-prod")) if "hours" in each.message
    ] == []


@pytest.mark.parametrize("max_steps", [1, 30, 5000, 14_000])
def test_batches_as_large_as_is_advised_are_enough(max_steps):
    fewer = f"trainer.max_steps={max_steps}"
    (one,) = found("BUD001", run_of(fewer, profile="a100-prod"))
    times = float(one.hint.split("use ")[1].split(" times")[0].replace(",", ""))
    tokens = plan_run(run_of(fewer, profile="a100-prod")).tokens_per_parameter.value
    assert found("BUD001", run_of(fewer, profile="a100-prod"), tokens_per_parameter=tokens * times) == []
    assert found("BUD001", run_of(fewer, profile="a100-prod"), tokens_per_parameter=tokens * (times - 0.1))


@pytest.mark.parametrize(
    ("override", "reader"),
    [("qk_clip_threshold=30", "muonclip"), ("muon_momentum=0.9", "muon"), ("eps=1e-6", "adamw")],
)
def test_the_optimizer_that_reads_the_key_is_named(override, reader):
    run = run_of("optimizer.name=lion", f"optimizer.{override}", profile="cpu-demo")
    assert [one.hint.partition(",")[0] for one in found("CFG013", run)] == [f"set optimizer.name to {reader}"]


def test_a_file_with_every_key_has_no_unread_optimizer_key(tmp_path):
    file = tmp_path / "resolved.json"
    file.write_text(to_json(to_dict(run_of(profile="cpu-demo").config)), encoding="utf-8")
    assert found("CFG013", resolve_run(None, [str(file)])) == []


@pytest.mark.parametrize(("fewer", "way"), [(1, "add text, or lower "), (0, "raise ")])
def test_ten_microbatches_of_text_are_not_few(fewer, way):
    tokens = 10 * plan_run(run_of()).tokens_per_microbatch.value - fewer
    (one,) = found("DAT005", run_of(), with_prepared(fill=0.5, num_tokens=tokens))
    assert one.hint.startswith(f"{way}trainer.per_device_train_batch_size")


def test_a_plugin_that_fails_while_the_text_is_prepared_is_reported_once():
    refusal = PreparationErrorFacts(code="PLG002", message="rules.py:3: it raised", hint="fix rules.py:3")
    facts = replace(with_facts("inspection", refusal=refusal, prepared=None), plugins=None)
    (one,) = found("DAT014", run_of(), facts)
    assert one.path == "plugins"
    failure = PluginFailure(key="plugins.masking", message=refusal.message, hint=refusal.hint)
    failing = PluginFacts(failures=(failure,))
    with pytest.raises(CannotTellError, match=r"rules\.py:3: it raised"):
        found("DAT014", run_of(), replace(facts, plugins=failing))
    assert found("PLG002", run_of(), replace(facts, plugins=failing))


@pytest.mark.parametrize(("hint", "shown"), [("drop it", "drop it"), ("", "delete the prepared folder and")])
def test_a_preparation_that_was_refused_has_its_own_hint(hint, shown):
    refusal = PreparationErrorFacts(code="DAT011", message="no column", hint=hint)
    facts = with_facts("inspection", refusal=refusal, prepared=None)
    (one,) = found("DAT014", run_of(), facts)
    assert one.hint.startswith(shown)
    text = TextFacts(source="a.csv", exists=True, formats={".csv": 1}, place="a.csv:3", message="no column")
    refusal, local = replace(refusal, message="a.csv:3: no column"), run_of("dataset.path=a.csv")
    facts = replace(with_facts("inspection", refusal=refusal, prepared=None), text=(text,))
    assert found("DAT032", local, facts) == [], "DAT014 reports it"
    assert len(found("DAT032", local, replace(facts, inspection=None))) == 1
    single = replace(facts, text=(replace(text, place="", message="", documents=1),))
    held_out, empty = (
        run_of("dataset.path=a.csv", "dataset.validation_split=0.1"),
        replace(refusal, code="DAT004"),
    )
    assert found("DAT032", held_out, replace(single, inspection=None))
    refused = replace(single, inspection=replace(single.inspection, refusal=empty))
    assert found("DAT032", held_out, refused) == [], "DAT014 reports it"


@pytest.mark.parametrize(("length", "advised"), [(1000, 992), (31, 32)])
def test_the_length_that_is_advised_fits_the_products(length, advised):
    emulated = ("torchao.enable=true", "torchao.recipe=mxfp8_emulated")
    run = run_of(*emulated, f"dataset.max_seq_length={length}", "trainer.per_device_train_batch_size=1")
    (one,) = found("PRE009", run)
    assert one.hint.startswith(f"set dataset.max_seq_length to {advised}, or")


@pytest.mark.parametrize(
    ("hidden", "intermediate", "keys"),
    [
        (256, 256, "model.intermediate_size (the feed-forward is 176 wide)"),
        (240, 288, "model.hidden_size"),
        (240, 256, "model.hidden_size and model.intermediate_size (the feed-forward is 176 wide)"),
    ],
)
def test_the_width_that_does_not_fit_the_products_is_named(hidden, intermediate, keys):
    emulated = ("torchao.enable=true", "torchao.recipe=mxfp8_emulated", "model.num_attention_heads=4")
    sizes = (f"model.hidden_size={hidden}", f"model.intermediate_size={intermediate}")
    (one,) = found("PRE009", run_of(*emulated, *sizes))
    assert one.hint == f"change {keys}, or set torchao.enable to false"


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ((), "divide the summed loss"),
        (("task=contrastive", "dataset.long_documents=truncate"), "repeat the forward pass"),
    ],
)
def test_an_unequal_gradient_of_pairs_has_another_cause(overrides, hint):
    (one,) = found("SCH003", run_of(*overrides), with_part("accumulation", relative_difference=0.06))
    assert one.hint.startswith(hint)


@pytest.mark.parametrize(
    ("place", "hint"),
    [
        ({}, "this run has ended: raise trainer.max_steps to continue it, or set another trainer.output_dir"),
        ({"is_elsewhere": True}, "raise trainer.max_steps, or resume from an earlier checkpoint"),
        ({"is_elsewhere": True, "is_continued": True}, "raise trainer.max_steps, which counts the steps of "),
    ],
)
def test_a_run_that_has_ended_is_told_both_ways_on(place, hint):
    run = run_of("trainer.resume_from_checkpoint=auto", "trainer.max_steps=800")
    ended = {"exists": True, "is_verified": True, "target": "runs/first/checkpoints/800", "step": 800}
    (one,) = found("CKP007", run, with_facts("resume", **ended, **place))
    assert one.hint.startswith(hint)
