"""The rules of a rehearsal at their limits, and what they say where a part of it is missing."""

from dataclasses import replace
from typing import Any

import pytest

from neobert.families.attention import SelectedBlocks
from neobert.plan import Measured
from profiles.registry import Expectations, resolve_run
from tests.validators.judging import FACTS, with_part
from validators.facts import Facts
from validators.facts_rehearsal import AnswerFacts
from validators.finding import Severity
from validators.planning import plan_run
from validators.rehearsal_parts import rehearsal_measurements
from validators.rule import RULES, CannotTellError

FOUND = FACTS.rehearsal
RUN = resolve_run("a100-prod")
PLAN = plan_run(RUN)


def without(part: str) -> Facts:
    empty = () if part in ("schedule", "resumes") else None
    return replace(FACTS, rehearsal=replace(FOUND, **{part: empty}))


def output(code: str, facts: Facts, run: Any = RUN) -> list[str]:
    return [violation.message for violation in RULES[code].judge(run, PLAN, facts)]


def overridden(*overrides: str) -> Any:
    return resolve_run("a100-prod", [], overrides)


PARTS = {
    "PRF001": "speed",
    "PRF002": "speed",
    "PRF003": "speed",
    "PRF004": "speed",
    "MEM002": "memory",
    "MEM003": "memory",
    "PRE003": "precision",
    "ATT002": "attention",
    "CKP006": "resumes",
    "CKP009": "resumes",
    "CKP011": "save_s",
    "SCH002": "schedule",
    "SCH003": "accumulation",
    "NUM005": "learning",
    "DAT006": "evaluation",
    "TEL001": "telemetry",
    "TEL002": "watchdog",
    "TEL004": "save_s",
}


@pytest.mark.parametrize(("code", "part"), PARTS.items())
def test_what_was_not_measured_is_unknown_and_no_pass(code, part):
    assert output(code, FACTS) == []
    with pytest.raises(CannotTellError):
        output(code, without(part))


@pytest.mark.parametrize("code", ["PRF002", "PRF003", "PRF004", "MEM002", "MEM003"])
def test_what_is_no_reason_to_refuse_a_run_warns(code):
    assert RULES[code].severity is Severity.WARN


def test_a_device_without_room_says_why_the_rest_is_unknown():
    full = replace(FACTS, rehearsal=replace(FOUND, out_of_memory="no room", memory=None))
    with pytest.raises(CannotTellError, match="the device ran out of memory"):
        output("MEM002", full)
    with pytest.raises(CannotTellError, match="not all of the program ran"):
        output("CFG004", full)
    assert output("MEM001", full) == ["the device is out of memory: no room"]


@pytest.mark.parametrize(
    ("field", "path", "message", "reason"),
    [
        ("diverged", "optimizer.lr", "the rehearsal diverged: it leapt [NAN001]", "the loss diverged"),
        ("untrained", "task", "the rehearsal stopped: it leapt [TRN003]", "weights got no gradient"),
    ],
)
def test_a_run_that_stops_itself_fails_and_says_why_the_rest_is_unknown(field, path, message, reason):
    parts = dict.fromkeys(set(PARTS.values()) - {"schedule", "resumes"})
    stopped = {field: message.partition(": ")[2]}
    facts = replace(
        FACTS, rehearsal=replace(FOUND, schedule=(), resumes=(), keys_read=(), **parts, **stopped)
    )
    (violation,) = RULES["NUM005"].judge(RUN, PLAN, facts)
    assert (violation.path, violation.message) == (path, message)
    for code in {"CFG004", *PARTS} - {"NUM005"}:
        with pytest.raises(CannotTellError, match=reason):
            output(code, facts)
    assert output("MEM001", facts) == []


@pytest.mark.parametrize(("mfu", "expected", "count"), [(0.0099, 0.01, 1), (0.01, 0.01, 0), (0.2, 0.41, 1)])
def test_the_floor_is_one_percent_or_half_of_what_is_expected(mfu, expected, count):
    profile = RUN.profile._replace(expects=Expectations(mfu=expected))
    assert len(output("PRF001", with_part("speed", mfu=mfu), replace(RUN, profile=profile))) == count


def test_a_run_without_a_profile_has_the_hard_floor():
    bare = replace(RUN, profile=None)
    assert output("PRF001", with_part("speed", mfu=0.0101), bare) == []
    assert "at least 1.0%, the minimum" in output("PRF001", with_part("speed", mfu=0.009), bare)[0]


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"tokens_per_second": 75_600.0}, 0),  # a tenth less or more than the 84,000 of the baseline
        ({"tokens_per_second": 75_599.0}, 1),
        ({"tokens_per_second": 92_399.0}, 0),
        ({"tokens_per_second": 92_401.0}, 1),
        ({"line_step_times_s": (1.0, 1.0, 1.09, 1.09)}, 0),
        ({"line_step_times_s": (1.0, 1.0, 1.11, 1.11)}, 1),
        ({"line_step_times_s": (1.0, 1.0, 0.89, 0.89)}, 1),
        ({"line_step_times_s": (1.0,)}, 0),
        ({"line_step_times_s": (1.0, 1.2)}, 1),
        ({"line_step_times_s": (1.0, 1.2, 1.2)}, 1),
        ({"line_step_times_s": (1.0, 1.0, 1.0, 1.2, 1.2, 1.2)}, 1),
        ({"recompiles": None}, 0),
        ({"recompiles": 0}, 0),
        ({"recompiles": 1}, 1),
    ],
)
def test_a_pace_that_is_off_the_baseline_or_drifts_and_compilations_behind_the_warm_up(changes, count):
    assert len(output("PRF002", with_part("speed", **changes))) == count


ON_ONE_GPU = ("distributed.mode=replicated", "distributed.nproc_per_node=1")
LARGER = "raise trainer.per_device_train_batch_size"
GRAPHS = "set trainer.cuda_graphs to true"


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (("distributed.nproc_per_node=2",), LARGER),
        (("distributed.nnodes=2", *ON_ONE_GPU), LARGER),
        ((*ON_ONE_GPU, "trainer.torch_compile=true"), f"{GRAPHS}, or {LARGER}"),
        (ON_ONE_GPU, f"{GRAPHS}, or {LARGER}"),
        (
            (*ON_ONE_GPU, "datacollator.pack_sequences=false"),
            f"set datacollator.pack_sequences to true and {GRAPHS}, or {LARGER}",
        ),
        ((*ON_ONE_GPU, "trainer.torch_compile=true", "trainer.cuda_graphs=true"), LARGER),
        ((*ON_ONE_GPU, "task=classification", "trainer.torch_compile=true"), LARGER),
    ],
)
def test_what_relieves_the_host(overrides, hint):
    (found,) = RULES["PRF004"].judge(
        overridden("trainer.torch_compile=false", *overrides), PLAN, with_part("speed", host_bound_share=0.75)
    )
    assert found.message == "the GPU waits for kernel launches in 75% of steps (limit 25%)"
    assert found.hint == hint


def test_retries_and_shrinking_memory():
    assert len(output("MEM003", with_part("memory", alloc_retries=1))) == 1
    assert output("MEM003", with_part("memory", growth_mib_per_step=-50.0)) == []


def test_the_plan_takes_what_was_measured():
    plan = plan_run(RUN, rehearsal_measurements(FACTS))
    assert plan.step_time_s.value == FOUND.speed.step_time_s
    assert plan.memory_mib.value == FOUND.memory.peak_reserved_mib + FOUND.memory.context_mib
    assert "a rehearsal on NVIDIA A100" in plan.eta_s.reason
    assert rehearsal_measurements(Facts()) is None
    assert rehearsal_measurements(replace(FACTS, rehearsal=replace(FOUND, speed=None, memory=None))) is None
    assert rehearsal_measurements(without("memory")).memory_mib is None
    assert rehearsal_measurements(without("speed")).step_time_s is None


def test_master_weights_are_fp32():
    halves = with_part("precision", parameters={"float32": 10, "bfloat16": 5})
    assert output("PRE003", halves) == ["not all parameters are float32: 5 in bfloat16"]


def test_products_that_nobody_saw_are_no_proof():
    with pytest.raises(CannotTellError, match="no matrix products were recorded"):
        output("PRE003", with_part("precision", product_flops={"bfloat16": 0.0}))


def test_a_cpu_run_declares_fp32():
    run = resolve_run("cpu-demo")
    assert output("PRE003", with_part("precision", product_flops={"float32": 1.0}), run) == []
    assert len(output("PRE003", with_part("precision", product_flops={"bfloat16": 1.0}), run)) == 1


def test_blocks_of_one_graph_say_it_once():
    facts = with_part("attention", ran=("triton_packed", "", ""))
    assert output("ATT002", facts) == []  # a100-prod compiles
    with pytest.raises(CannotTellError, match="blocks 1, 2 did not report"):
        output("ATT002", facts, overridden("trainer.torch_compile=false"))
    with pytest.raises(CannotTellError, match="no block reported"):
        output("ATT002", with_part("attention", ran=("", "")))


def test_a_named_kernel_is_the_one_that_is_resolved():
    facts = with_part("attention", resolved="torch_varlen", ran=("torch_varlen",))
    named = overridden("model.attn_backend=flash_attn_varlen", "model.kernel_backend=torch")
    (violation,) = RULES["ATT002"].judge(named, plan_run(named), facts)
    assert violation.message == "flash_attn_varlen was requested, but torch_varlen was resolved"
    assert output("ATT002", facts, overridden("model.attn_backend=auto")) == []
    assert output("ATT002", facts, overridden("model.attn_backend=torch_varlen")) == []


@pytest.mark.parametrize(("has_mask", "count"), [(True, 1), (False, 0), (None, 0)])
def test_packing_comes_without_a_mask(has_mask, count):
    assert len(output("ATT003", with_part("attention", has_mask_with_packing=has_mask))) == count


def trial(number: int, device: str = "cuda", **changes: Any) -> Facts:
    trials = list(FOUND.resumes)
    trials[number] = replace(trials[number], **changes)
    return replace(FACTS, rehearsal=replace(FOUND, device=device, resumes=tuple(trials)))


@pytest.mark.parametrize(
    ("number", "device", "changes", "count"),
    [
        (0, "cuda", {"start": 0}, 1),
        (0, "cuda", {"compared_steps": 0}, 1),
        (0, "cuda", {"first_loss_difference": 1e-9, "largest_loss_difference": 1e-9}, 1),
        (0, "cuda", {"largest_loss_difference": 1e-3}, 0),
        (0, "cuda", {"largest_loss_difference": 1.005e-3}, 1),
        (0, "cpu", {"largest_loss_difference": 1e-12}, 1),
        (1, "cuda", {"first_loss_difference": 1e-3, "largest_loss_difference": 1e-3}, 0),
        (1, "cuda", {"first_loss_difference": 1.1e-3, "largest_loss_difference": 1.1e-3}, 1),
        (1, "cpu", {"first_loss_difference": 1e-12, "largest_loss_difference": 1e-12}, 1),
        (0, "cuda", {"first_loss_difference": None}, 1),
        (1, "cpu", {"largest_loss_difference": None}, 1),
        (1, "cuda", {"differing": ("data", "schedule")}, 1),
    ],
)
def test_a_resume_goes_on_as_it_was(number, device, changes, count):
    assert len(output("CKP009", trial(number, device, **changes))) == count


def test_one_resume_is_not_two():
    once = replace(FACTS, rehearsal=replace(FOUND, resumes=FOUND.resumes[:1]))
    for code in ("CKP006", "CKP009"):
        with pytest.raises(CannotTellError, match="resumed only 1 time"):
            output(code, once)


@pytest.mark.parametrize(
    ("max_steps", "save_steps", "hints"),
    [
        (200, 2, ["set trainer.save_steps to 21 or more, or set trainer.output_dir to a faster disk"]),
        (200, 20, ["set trainer.save_steps to 21 or more, or set trainer.output_dir to a faster disk"]),
        (21, 2, ["set trainer.output_dir to a faster disk"]),
        (200, 21, []),
        (200, 0, []),
        (20, 20, []),
        (20, 19, ["set trainer.output_dir to a faster disk"]),
    ],
)
def test_a_save_that_takes_longer_than_the_steps_between_two(max_steps, save_steps, hints):
    run = overridden(f"trainer.max_steps={max_steps}", f"trainer.save_steps={save_steps}")
    plan = plan_run(run, Measured(step_time_s=3.0, memory_mib=None, source="a rehearsal"))
    facts = replace(FACTS, rehearsal=replace(FOUND, save_s=60.5))
    assert [each.hint for each in RULES["CKP011"].judge(run, plan, facts)] == hints


def test_a_checkpoint_of_nothing_is_none():
    assert output("CKP006", trial(0, num_tensors=0)) == ["the checkpoint contains no tensors"]


@pytest.mark.parametrize(("factor", "count"), [(1.0, 0), (1 + 0.995e-6, 0), (1 + 1.005e-6, 1)])
def test_the_rate_of_a_step(factor, count):
    last = FOUND.schedule[-1]
    lines = (FOUND.schedule[0], replace(last, learning_rate=last.learning_rate * factor))
    assert len(output("SCH002", replace(FACTS, rehearsal=replace(FOUND, schedule=lines)))) == count


def test_the_rate_is_that_of_the_steps_that_were_rehearsed():
    """The text is counted after the rehearsal has planned its steps."""
    # 2,000 steps of warm-up in the rehearsal, as in the recorded one; 4,000 in the run.
    longer = overridden("trainer.max_steps=100000", "scheduler.warmup_percent=4")
    assert list(RULES["SCH002"].judge(longer, plan_run(longer), FACTS))
    planned = replace(FACTS, rehearsal=replace(FOUND, planned_steps=50_000))
    assert list(RULES["SCH002"].judge(longer, plan_run(longer), planned)) == []


def test_a_gradient_of_nothing_is_unknown():
    with pytest.raises(CannotTellError, match="no finite gradient"):
        output("SCH003", with_part("accumulation", relative_difference=None))


@pytest.mark.parametrize(
    ("losses", "path", "reported"),
    [
        ({"last": None}, "optimizer.lr", "to not finite"),
        ({"first": None}, "datacollator.mlm_probability", "before the first update"),
        ({"first": None, "last": None}, "datacollator.mlm_probability", "before the first update"),
    ],
)
def test_a_loss_that_is_no_number_has_not_fallen(losses, path, reported):
    facts = with_part("learning", overfit=replace(FOUND.learning.overfit, **losses))
    (violation,) = RULES["NUM005"].judge(RUN, PLAN, facts)
    assert violation.path == path
    assert reported in violation.message


def test_a_first_loss_that_is_no_number_fails_trained_weights_too():
    facts = with_part("learning", initial_loss=None)
    for run in (RUN, overridden("model.pretrained_checkpoint=some/folder")):
        (message,) = output("NUM005", facts, run)
        assert message == "the initial loss is not finite"


def test_a_task_without_masks_is_not_sent_to_their_keys():
    overfit = replace(FOUND.learning.overfit, first=None)
    facts = with_part("learning", initial_loss=None, overfit=overfit)
    found = list(RULES["NUM005"].judge(overridden("task=classification"), PLAN, facts))
    assert [each.path for each in found] == ["model", "model"]
    assert {each.hint for each in found} == {"check the initial weights, and the labels"}


def test_an_evaluation_that_was_not_heard_of():
    assert len(output("DAT006", with_part("evaluation", was_announced=False))) == 1
    assert len(output("DAT006", with_part("evaluation", loss=None))) == 1
    assert output("DAT006", with_part("evaluation", is_configured=False, loss=None)) == []
    with pytest.raises(CannotTellError):
        output("DAT006", without("overlap"))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"gpu_mem_alloc_gib": None}, 1),
        ({"gpu_mem_alloc_mib": None}, 1),
        ({"gpu_mem_alloc_mib": None, "gpu_mem_alloc_gib": None}, 0),
        ({"driver_mib": 26_000}, 0),  # 24,000 and 700 are 5 % less
        ({"driver_mib": 26_001}, 1),
        ({"driver_mib": 23_524}, 0),
        ({"driver_mib": 23_523}, 1),
        ({"gpu_mem_reserved_mib": 0.0, "gpu_mem_reserved_gib": 0.0, "driver_mib": 956}, 0),
        ({"gpu_mem_reserved_mib": 0.0, "gpu_mem_reserved_gib": 0.0, "driver_mib": 957}, 1),
        ({"gpu_mem_reserved_mib": None, "gpu_mem_reserved_gib": None}, 1),
        ({"system_rss_mib": 4000.0 / 1.0298}, 0),
        ({"system_rss_mib": 4000.0 / 1.0302}, 1),
        ({"system_rss_mib": 4000.0 / 0.9702}, 0),
        ({"system_rss_mib": 4000.0 / 0.9698}, 1),
    ],
)
def test_what_is_told_of_memory(changes, count):
    assert len(output("TEL001", with_part("telemetry", **changes))) == count


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [("step", "float", 1), ("step", "null", 1), ("mfu", "null", 0), ("mfu", "str", 1), ("other", "str", 0)],
)
def test_the_fields_of_a_heartbeat(name, kind, count):
    fields = FOUND.telemetry.fields | {name: kind}
    assert len(output("TEL001", with_part("telemetry", fields=fields))) == count


def test_a_field_that_is_missing():
    fields = {name: kind for name, kind in FOUND.telemetry.fields.items() if name != "eta_s"}
    assert output("TEL001", with_part("telemetry", fields=fields))[0].startswith(
        "the heartbeat's eta_s is missing"
    )


def test_a_driver_that_says_nothing_leaves_it_unknown():
    with pytest.raises(CannotTellError, match="the driver did not report"):
        output("TEL001", with_part("telemetry", driver_mib=None))
    with pytest.raises(CannotTellError, match="others came"):
        output("TEL001", with_part("telemetry", driver_mib=None, driver_reason="others came"))
    wrong = with_part("telemetry", driver_mib=None, gpu_mem_alloc_gib=1.0)
    assert len(output("TEL001", wrong)) == 1
    processor = replace(wrong, rehearsal=replace(wrong.rehearsal, device="cpu", memory=None))
    assert len(output("TEL001", processor)) == 1


def test_a_stall_that_nobody_ends():
    assert len(output("TEL002", with_part("watchdog", detected_s=None))) == 1
    assert len(output("TEL002", with_part("watchdog", survivors=1))) == 1


@pytest.mark.parametrize(
    ("microbatch_s", "hints"),
    [(12.0, ["set watchdog.evaluation_limit_s to 120 or more"]), (11.9, []), (None, [])],
)
def test_a_timeout_below_a_microbatch_of_an_evaluation(microbatch_s, hints):
    run, facts = (
        overridden("watchdog.evaluation_limit_s=12"),
        with_part("evaluation", microbatch_s=microbatch_s),
    )
    assert [each.hint for each in RULES["TEL004"].judge(run, PLAN, facts)] == hints


def test_an_evaluation_that_was_not_reached_is_unknown():
    with pytest.raises(CannotTellError, match="the evaluation was not measured"):
        output("TEL004", without("evaluation"))


def unread(run: Any, device: str = "cuda", **changes: Any) -> dict[str, Severity | None]:
    facts = replace(FACTS, rehearsal=replace(FOUND, device=device, **changes))
    return {violation.path: violation.severity for violation in RULES["CFG004"].judge(run, PLAN, facts)}


def test_keys_that_nothing_reads():
    assert unread(RUN) == {}
    keys = ("guard.max_lost_minutes=30", "dataset.num_proc=3", "trainer.output_dir=x", "optimizer.eps=1e-5")
    run = overridden("model.hidden_size=1536", *keys)
    assert unread(run, keys_read=()) == {"model.hidden_size": None, "optimizer.eps": None}
    assert unread(run) == {}


def test_a_key_of_the_profile_is_no_mistake_of_the_user():
    assert RUN.origin("optimizer.betas").kind == "profile"
    assert unread(RUN, keys_read=()) == {}


def test_what_only_a_gpu_reads_is_not_missed_on_a_cpu():
    run = overridden("trainer.tf32=false")
    read = tuple(key for key in FOUND.keys_read if key != "trainer.tf32")
    assert unread(run, keys_read=read) == {"trainer.tf32": None}
    assert unread(run, "cpu", keys_read=read) == {}


@pytest.mark.parametrize(
    ("kind", "value", "count"),
    [
        ("different", 1e-6, 0),
        ("different", 9.999e-7, 1),
        ("same", 0.01, 0),
        ("same", 0.01001, 1),
        ("isolation", 0.0, 0),
        ("isolation", 1e-9, 1),
        ("bidirectional", 1.0, 0),
        ("bidirectional", 0.99, 1),
        ("causal", 0.0, 0),
        ("causal", 1e-9, 1),
        ("equality", 2.0, 0),
        ("equality", 2.001, 1),
        ("positions", 0.0, 0),
        ("positions", 1.0, 1),
        ("shift", 1e-6, 0),
        ("shift", 0.0, 1),
        ("learned", 0.02, 0),
        ("learned", 0.0199, 1),
        ("same", None, 1),
        ("exact", 0, 0),
        ("exact", 1, 1),
        ("close", 2.0, 0),
        ("close", 2.001, 1),
    ],
)
def test_known_answers_at_their_limits(kind, value, count):
    others = tuple(answer for answer in FOUND.answers if answer.kind != kind)
    answers = (*others, AnswerFacts(subject="a text", kind=kind, value=value))
    messages = output("TSK006", replace(FACTS, rehearsal=replace(FOUND, answers=answers)))
    assert len(messages) == count
    assert all("a text" in message for message in messages)


@pytest.mark.parametrize("kind", ["isolation", "bidirectional", "equality", "positions", "different", "same"])
def test_a_test_that_every_task_must_have_is_unknown_without_it(kind):
    answers = tuple(answer for answer in FOUND.answers if answer.kind != kind)
    with pytest.raises(CannotTellError, match=rf"^not tested: {kind}$"):
        output("TSK006", replace(FACTS, rehearsal=replace(FOUND, answers=answers)))


def test_a_rehearsal_without_answers_is_unknown():
    missing = "not tested: isolation, equality, positions, different, same, bidirectional"
    with pytest.raises(CannotTellError, match=missing):
        output("TSK006", replace(FACTS, rehearsal=replace(FOUND, answers=())))
    with pytest.raises(CannotTellError, match="ran out of memory"):
        output("TSK006", replace(FACTS, rehearsal=replace(FOUND, answers=(), out_of_memory="no room")))


@pytest.mark.parametrize(
    ("of_the_model", "missing"),
    [
        ({"selected": SelectedBlocks(64, 16, 512)}, "exact, close"),
        ({"direction": "causal"}, "causal, shift, next"),
    ],
)
def test_attention_needs_the_answers_of_its_kind(of_the_model, missing):
    attention = replace(PLAN.shape.attention, **of_the_model)
    plan = PLAN._replace(shape=replace(PLAN.shape, attention=attention))
    with pytest.raises(CannotTellError, match=f"^not tested: {missing}$"):
        list(RULES["TSK006"].judge(RUN, plan, FACTS))
