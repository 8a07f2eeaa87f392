"""Values just at and just beyond what a rule allows, and the words it says, where no fixture goes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from neobert.kernel_table import ATTENTION
from profiles.registry import resolve_run
from tests.families.layouts import RELEASED
from tests.validators.judging import FACTS, found, run_of
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.planning import plan_run
from validators.rule import RULES
from validators.rules.attention import attention_obstacle

AUTO = ("model.attn_backend=auto", "model.kernel_backend=auto")
EVERYTHING = {"torch": "2.13", "triton": "3.6", "quack-kernels": "0.6", "flash-attn": "2.8"}


def with_packages(*left_out: str, **changes: Any) -> Facts:
    packages = {name: version for name, version in EVERYTHING.items() if name not in left_out}
    return replace(FACTS, software=replace(FACTS.software, packages=packages), **changes)


def gpus(*majors: int) -> Any:
    return tuple(replace(FACTS.gpus[0], compute_capability=(major, 0)) for major in majors)


@pytest.mark.parametrize("kernel", [kernel for kernel in ATTENTION.values() if kernel.majors])
def test_a_kernel_runs_from_its_first_card_to_its_last(kernel):
    first, last = kernel.majors
    others = {"flash-attn-4": "4.0", "flash-attn-3": "3.0", "flash-linear-attention": "0.6"}
    packages = others | EVERYTHING
    here = replace(FACTS, software=replace(FACTS.software, packages=packages))
    legal = {
        major
        for major in range(first - 2, last + 3)
        if not attention_obstacle(run_of(), replace(here, gpus=gpus(major)), kernel)
    }
    assert legal == set(range(first, last + 1))


@pytest.mark.parametrize(
    ("overrides", "is_judged"),
    [
        (("model.kernel_backend=auto",), True),
        (("model.kernel_backend=torch", "model.attn_backend=auto"), True),
        (("model.kernel_backend=torch", "model.attn_backend=flash_attn_varlen"), False),
        (("model.kernel_backend=triton", "model.attn_backend=auto"), False),
    ],
)
def test_slower_kernels_are_a_matter_of_what_is_left_to_auto(overrides, is_judged):
    run = run_of(*overrides)
    assert bool(RULES["ATT007"].inapplicable(run, plan_run(run))) is not is_judged


def test_only_the_missing_package_is_advised():
    """The keys are auto already, and other cards' packages would change nothing."""
    hints = [one.hint for one in found("ATT007", run_of(*AUTO), with_packages("triton", "flash-attn"))]
    assert hints == ["pip install triton", "pip install --no-build-isolation 'flash-attn>=2.8'"]
    on_volta = with_packages("triton", "flash-attn", gpus=gpus(7))
    assert [one.hint for one in found("ATT007", run_of(*AUTO), on_volta)] == hints[:1]


def test_a_packed_transformers_encoder_is_told_of_faster_attention_only(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(RELEASED["ModernBERT-base"]), encoding="utf-8")
    run = run_of("model.type=hf", f"model.config={tmp_path}")
    messages = [one.message for one in found("ATT007", run, with_packages("flash-attn", gpus=gpus(9)))]
    assert len(messages) == 1
    assert messages[0].startswith("auto will run torch_varlen")


@pytest.mark.parametrize(("majors", "count"), [((9, 9), 1), ((9, 8), 0), ((8, 8), 0), ((), 0)])
def test_only_hoppers_miss_the_fused_kernels(majors, count):
    facts = with_packages("quack-kernels", gpus=gpus(*majors))
    assert len(found("ATT007", run_of(*AUTO), facts)) == count


def test_a_choice_among_kernels_is_judged_by_what_it_may_become(monkeypatch):
    monkeypatch.setitem(ATTENTION, "sdpa", replace(ATTENTION["sdpa"], is_automatic=True))
    run = run_of("model.attn_backend=auto")
    assert found("ATT004", run) == [], "one of them is no loop"
    assert RULES["ATT001"].inapplicable(run, plan_run(run)), "one of them needs no GPU"


@pytest.mark.parametrize(
    ("profile", "limit_s", "takes"),
    [("cpu-demo", 900.0, "16 minutes (limit 15)"), ("cpu", 86_400.0, "25 hours (limit 24)")],
)
def test_a_profile_s_kind_limits_the_length_of_its_runs(profile, limit_s, takes):
    run = run_of("dataset.path=text", profile=profile)
    assert found("CFG005", run, eta_s=limit_s) == []
    assert len(found("CFG005", run, eta_s=limit_s + 1)) == 1
    (one,) = found("CFG005", run, eta_s=limit_s + (60 if profile == "cpu-demo" else 3600))
    assert takes in one.message
    assert ("a development profile" in one.hint) == (profile == "cpu-demo")


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({}, []),
        ({"kind": "base"}, ["is a base for other profiles"]),
        ({"is_locked": False}, ["differs from its pin in profiles.lock"]),
        ({"is_locked": False, "is_pinned": False}, ["a100-prod has no pin in profiles.lock"]),
        ({"is_locked": False, "is_shipped": False}, ["differs from its pin in profiles.lock"]),
        ({"is_locked": False, "is_pinned": False, "is_shipped": False}, []),
        ({"kind": "base", "is_locked": False, "is_pinned": False}, ["is a base for other profiles"]),
    ],
)
def test_a_profile_is_a_run_and_as_it_was_pinned(changes, reported):
    run = run_of()
    run = replace(run, profile=run.profile._replace(**changes))
    messages = [one.message for one in found("CFG005", run)]
    assert len(messages) == len(reported)
    assert all(part in message for part, message in zip(reported, messages, strict=True))


@pytest.mark.parametrize(("metric", "count"), [("null", 1), ("eval/loss", 0)])
def test_more_of_nothing_is_no_better(metric, count):
    run = run_of("trainer.greater_is_better=false", f"trainer.metric_for_best_model={metric}")
    assert len([one for one in found("CFG013", run) if "best" in one.message]) == count


@pytest.mark.parametrize(
    ("max_steps", "step_time_s"), [(50_000, 3600.0), (50_000, 7200.0), (3, 1.0), (2, 1.0)]
)
def test_below_a_cadence_of_one_there_is_none(max_steps, step_time_s):
    run = run_of("trainer.save_steps=0", f"trainer.max_steps={max_steps}")
    (one,) = found("CKP001", run, step_time_s=step_time_s)
    assert one.hint == "set trainer.save_steps to 1"
    assert found("CKP001", run_of("trainer.save_steps=1", f"trainer.max_steps={max_steps}")) == []


@pytest.mark.parametrize(
    ("step_time_s", "hint"),
    [
        (10.0, "set trainer.save_steps to 360 or less, but above 0"),
        (3600.0, "set trainer.save_steps to 1"),
        (3601.0, "make steps faster, because one step exceeds guard.max_lost_minutes"),
    ],
)
def test_work_at_risk_is_mended_by_saving_or_by_speed(step_time_s, hint):
    (one,) = found("CKP002", run_of(), step_time_s=step_time_s, minutes_at_risk=61.0)
    assert one.hint == hint


@pytest.mark.parametrize(
    ("eval_steps", "hint"),
    [
        (0, "set trainer.eval_steps to 1000, the value of trainer.save_steps, or a divisor of it"),
        (2000, "set trainer.eval_steps to 1000, the value of trainer.save_steps, or a divisor of it"),
        (300, "set trainer.save_steps to 900, a multiple of trainer.eval_steps"),
        (999, "set trainer.save_steps to 999, a multiple of trainer.eval_steps"),
    ],
)
def test_the_way_to_a_best_that_is_judged_is_one(eval_steps, hint):
    best = ("trainer.metric_for_best_model=eval/loss", "trainer.max_steps=50000")
    (one,) = found("CKP010", run_of(*best, "trainer.save_steps=1000", f"trainer.eval_steps={eval_steps}"))
    assert one.hint == hint
    key, _, value = hint.removeprefix("set ").partition(",")[0].partition(" to ")
    other = {"trainer.save_steps": "1000", "trainer.eval_steps": str(eval_steps)} | {key: value}
    assert found("CKP010", run_of(*best, *(f"{name}={number}" for name, number in other.items()))) == []


def findings_on_best(save_steps: int, eval_steps: int) -> list[Violation]:
    """Judge the best checkpoint of a run of 50,000 steps."""
    best = ("trainer.metric_for_best_model=eval/loss", "trainer.max_steps=50000")
    return found(
        "CKP010", run_of(*best, f"trainer.save_steps={save_steps}", f"trainer.eval_steps={eval_steps}")
    )


@pytest.mark.parametrize(
    ("save_steps", "eval_steps", "often"),
    [(0, 0, None), (1, 2, "every 2 steps"), (50_000, 50_000, None), (49_999, 7, "every 7 steps"),
     (100, 0, "only at the end"), (100, 50, None)],
)  # fmt: skip
def test_the_best_is_judged_when_it_is_saved(save_steps, eval_steps, often):
    reported = [one.message for one in findings_on_best(save_steps, eval_steps)]
    assert bool(reported) is (often is not None)
    assert all(str(often) in message for message in reported)


@pytest.mark.parametrize(
    ("save_steps", "eval_steps", "count"),
    [(0, 1, 1), (0, 49_999, 1), (0, 50_000, 0), (0, 0, 0), (50_000, 7, 1), (50_001, 7, 1), (49_000, 7, 0)],
)
def test_a_single_checkpoint_is_not_the_best_of_several(save_steps, eval_steps, count):
    hint = f"set trainer.save_steps to {eval_steps}, the value of trainer.eval_steps, or "
    hint += "trainer.metric_for_best_model to null"
    reported = findings_on_best(save_steps, eval_steps)
    assert [(one.severity, one.hint) for one in reported] == [(Severity.WARN, hint)] * count


def held(steps: tuple[int, ...], num_set_aside: int = 0) -> Facts:
    output = replace(FACTS.output, checkpoint_steps=steps, num_set_aside=num_set_aside)
    return replace(FACTS, output=output)


@pytest.mark.parametrize(("tree_mib", "count"), [(500_000.0, 0), (500_000.005, 1)])
def test_a_run_that_starts_anew_has_nothing_on_the_disk(tree_mib, count):
    run = run_of("trainer.resume_from_checkpoint=never")
    reported = [one.message for one in found("CKP004", run, held((10, 20)), checkpoint_tree_mib=tree_mib)]
    assert len(reported) == count
    assert not any("already used" in message for message in reported)


@pytest.mark.parametrize(
    ("limit", "steps", "tree_mib", "count"),
    [
        (0, (10, 20), 503_000.0, 0),
        (0, (10, 20), 503_001.0, 1),
        (1, (10, 20), 503_000.0, 0),
        (1, (10, 20, 30, 40), 504_000.0, 0),
        (1, (10, 20, 30, 40), 504_001.0, 1),
        (3, (10, 20, 30, 40), 505_000.0, 0),
    ],
)
def test_what_is_kept_already_needs_no_room(limit, steps, tree_mib, count):
    """One was set aside besides; two that are kept whatever the limit, a start and it make four."""
    run = run_of(f"trainer.save_total_limit={limit}", "trainer.resume_from_checkpoint=auto")
    reported = found("CKP004", run, held(steps, 1), checkpoint_tree_mib=tree_mib, checkpoint_mib=1000.0)
    room = [one.message for one in reported if "MiB" in one.message]
    assert len(room) == count
    assert all("of that in existing checkpoints" in message for message in room)


@pytest.mark.parametrize(
    ("pace", "overrides", "count"),
    [
        (400_000 * 1.1, (), 0),
        (440_001.0, (), 1),
        (270_000.0, (), 0),
        (269_999.0, (), 1),
        (900_000.0, ("model.num_hidden_layers=14",), 0),
        (900_000.0, ("dataset.max_seq_length=512",), 0),
        (900_000.0, ("pretraining=null",), 0),
        (900_000.0, ("seed=5",), 1),
    ],
)
def test_a_pace_is_held_to_what_the_profile_measured_of_the_same_work(pace, overrides, count):
    """300,000 to 400,000 tokens/s, and a tenth more or less."""
    speed = replace(FACTS.rehearsal.speed, tokens_per_second=pace)
    seen = replace(FACTS.rehearsal, speed=speed, baseline_tokens_per_second=None)
    run = resolve_run("h200-prod", [], overrides)
    reported = [
        one for one in found("PRF002", run, replace(FACTS, rehearsal=seen)) if "expects" in one.message
    ]
    assert len(reported) == count


def test_a_pace_that_changes_is_that_of_the_two_halves():
    speed = replace(FACTS.rehearsal.speed, line_step_times_s=(1.0, 2.0, 2.0, 3.0, 3.0, 3.0))
    seen = replace(FACTS.rehearsal, speed=speed, baseline_tokens_per_second=None)
    (one,) = found("PRF002", run_of(), replace(FACTS, rehearsal=seen))
    assert one.message == "step time changed from 2 s to 3 s during the rehearsal (limit 10%)"
