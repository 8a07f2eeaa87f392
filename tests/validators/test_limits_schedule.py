"""Limits on warm-up and decay: just at them, and just beyond."""

import pytest

from profiles.registry import resolve_run
from tests.launcher.model_folders import SIZES, write_model
from tests.validators.judging import found, run_of
from validators.finding import Severity
from validators.planning import plan_run
from validators.rule import RULES


def judged(*overrides: str, profile: str = "h200-prod") -> list[tuple[str, Severity | None]]:
    return [(one.path, one.severity) for one in found("SCH001", run_of(*overrides, profile=profile))]


@pytest.mark.parametrize(
    ("total", "floor", "severities"),
    [
        (2001, 0.0, [None]),
        (98_999, 0.0, [None]),
        (99_000, 0.0, []),
        (98_999, 9.99e-4, [None]),
        (98_999, 1e-3, []),
        (90_000, 1e-3, []),
        (89_999, 1e-3, [Severity.WARN]),
        (2001, 1.0, [Severity.WARN]),
        (100_000, 0.0, []),
    ],
)
def test_how_long_the_floor_may_hold(total, floor, severities):
    """Of 100,000 steps: 1 % at nothing, 10 % at a share of the peak."""
    run = (f"scheduler.total_steps={total}", f"scheduler.final_lr_ratio={floor}")
    assert judged(*run) == [("scheduler.total_steps", severity) for severity in severities]


@pytest.mark.parametrize(
    ("steps", "severities"),
    [(50_000, []), (50_001, [Severity.WARN]), (99_999, [Severity.WARN]), (100_000, [None])],
)
def test_how_long_the_warmup_may_take(steps, severities):
    found_of = judged(f"scheduler.warmup_steps={steps}")
    assert found_of == [("scheduler.warmup_steps", severity) for severity in severities]
    percent = judged(f"scheduler.warmup_percent={steps / 1000}")
    assert percent == [("scheduler.warmup_percent", severity) for severity in severities]


def test_what_lies_behind_a_late_warmup_is_counted_once():
    """The decay is over before the warm-up: steps of warm-up are not at the floor."""
    late = ("scheduler.total_steps=1000", "scheduler.warmup_steps=50000")
    assert judged(*late) == [
        ("scheduler.warmup_steps", None),
        ("scheduler.total_steps", Severity.WARN),
    ]
    assert judged(
        "scheduler.total_steps=1000", "scheduler.warmup_steps=50000", "trainer.max_steps=55000"
    ) == [
        ("scheduler.warmup_steps", Severity.WARN),
        ("scheduler.warmup_steps", None),
    ]


@pytest.mark.parametrize(
    ("steps", "severities"), [(500, []), (501, [Severity.WARN]), (999, [Severity.WARN]), (1000, [None])]
)
def test_a_batch_that_never_is_whole(steps, severities):
    run = run_of(
        "trainer.max_steps=1000", "scheduler.warmup_steps=0", f"trainer.batch_size_warmup_steps={steps}"
    )
    assert [one.severity for one in found("SCH001", run) if "batch-size" in one.message] == severities


def test_pieces_until_the_end_of_a_run():
    run = run_of(
        "trainer.max_steps=1000", "scheduler.warmup_steps=0", "trainer.sequence_length_warmup_steps=501"
    )
    (violation,) = [one for one in found("SCH001", run) if "sequence-length" in one.message]
    assert (violation.path, violation.severity) == (
        "trainer.sequence_length_warmup_steps",
        Severity.WARN,
    )
    assert violation.message.startswith("the sequence-length warm-up takes 501 of 1,000 steps")
    assert violation.hint == "set trainer.sequence_length_warmup_steps to 250"


@pytest.mark.parametrize(
    ("optimizer", "width", "rate", "count"),
    [
        ("lion", 768, 1e-5, 0),
        ("lion", 768, 2e-3, 1),
        ("muon", 768, 6e-4, 0),
        ("adamw", 192, 0.77 * 4 / 192, 0),
        ("adamw", 192, 0.01605, 1),
        ("adamw", 192, 2.5e-5, 0),
        ("adamw", 192, 2.49e-5, 1),
    ],
)
def test_a_rate_is_compared_with_the_record_of_its_optimizer_and_width(optimizer, width, rate, count):
    overrides = (f"optimizer.name={optimizer}", f"model.hidden_size={width}", f"optimizer.lr={rate}")
    assert len(found("OPT006", run_of(*overrides))) == count


FINE_TUNED = (
    "task=classification", "dataset.long_documents=truncate", "model.pretrained_checkpoint=runs/base",
    "model.kernel_backend=torch", "model.hidden_size=192", "model.num_attention_heads=3",
)  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (("optimizer.lr=1.59e-3",), None),
        (("optimizer.lr=1.61e-3",), "fine-tuning of all weights"),
        (("optimizer.lr=1.34e-5",), None),
        (("optimizer.lr=1.33e-5",), "fine-tuning of all weights"),
        (("adapter.type=lora", "optimizer.lr=1.21e-4"), None),
        (("adapter.type=lora", "optimizer.lr=1.19e-4"), "LoRA"),
        (("adapter.type=lora", "optimizer.lr=7.9e-3"), None),
        (("adapter.type=lora", "optimizer.lr=8.1e-3"), "LoRA"),
        (("optimizer.name=adam", "optimizer.lr=1e-2"), "fine-tuning of all weights"),
    ],
)
def test_a_rate_of_fine_tuning_is_compared_with_its_own_record(overrides, kind):
    messages = [one.message for one in found("OPT006", run_of(*FINE_TUNED, *overrides))]
    assert len(messages) == (kind is not None)
    assert all(f"recorded for {kind} at a width of 192" in message for message in messages)


@pytest.mark.parametrize(
    ("method", "recorded_rate", "width", "factor"),
    [
        ("adapter.type=null", 1e-5, 1024, 1 / 4),
        ("adapter.type=null", 3e-4, 256, 4),
        ("adapter.type=lora", 6e-5, 1536, 1 / 4),
        ("adapter.type=lora", 5e-4, 768, 4),
    ],
)
def test_the_last_rate_of_fine_tuning_that_is_near_its_record(method, recorded_rate, width, factor):
    last = recorded_rate * width / width * factor
    beyond = last * factor ** (1 / 4000)
    for rate, count in ((last, 0), (beyond, 1)):
        size = (f"model.hidden_size={width}", f"model.num_attention_heads={width // 64}")
        run = run_of(*FINE_TUNED, *size, method, f"optimizer.lr={rate!r}")
        assert len(found("OPT006", run)) == count


CONTINUED = (
    "model.pretrained_checkpoint=runs/base", "trainer.gradient_accumulation_steps=1",
    "dataset.max_seq_length=512",
)  # fmt: skip
LOWEST, HIGHEST = 5e-5 / 4, 5e-4 * 4


@pytest.mark.parametrize(
    ("optimizer", "rows", "factors"),
    [
        ("adamw", 2048, ((2048 / 192) ** 0.5, 1)),
        ("adamw", 192, (1, (192 / 2048) ** 0.5)),
        ("muon", 2048, ((2048 / 192) ** 0.5, 1)),
        ("lion", 2048, ((2048 / 192) ** 0.5 * 26 / 77, 26 / 77)),
    ],
)
def test_a_rate_of_continued_pretraining_grows_with_the_root_of_the_tokens(optimizer, rows, factors):
    lowest, highest = LOWEST * factors[0], HIGHEST * factors[1]
    size = f"trainer.per_device_train_batch_size={rows}"
    for rate, count in (
        (lowest * 1.0001, 0),
        (lowest * 0.9999, 1),
        (highest * 0.9999, 0),
        (highest * 1.0001, 1),
    ):
        run = run_of(*CONTINUED, size, f"optimizer.name={optimizer}", f"optimizer.lr={rate!r}")
        messages = [one.message for one in found("OPT006", run)]
        assert len(messages) == count
        assert all("recorded for continued pretraining at a width of 768" in each for each in messages)


def test_an_adapter_on_text_has_a_higher_rate_than_all_weights(tmp_path):
    """As `init` writes it: ten times as high."""
    folder, rate = write_model(tmp_path / "model", "llama"), HIGHEST * 768 / SIZES["hidden_size"]
    llama = ("task=causal", "model.type=hf", f"model.pretrained_checkpoint={folder}")
    run = (*CONTINUED[1:], *llama, "trainer.per_device_train_batch_size=192", f"optimizer.lr={rate}")
    assert len(found("OPT006", run_of(*run))) == 1
    assert not found("OPT006", run_of(*run, "adapter.type=lora"))


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("optimizer.name=adamw", ""),
        ("optimizer.name=lion", "no usual fine-tuning rates are known for optimizer lion"),
        ("model.pretrained_checkpoint=null", "the run starts from random weights"),
    ],
)
def test_rates_of_fine_tuning_are_recorded_for_adam_and_trained_encoders(override, reason):
    run = run_of(*FINE_TUNED, override)
    assert RULES["OPT006"].inapplicable(run, plan_run(run)) == reason


@pytest.mark.parametrize(("epsilon", "count"), [(1e-20, 0), (0.99e-20, 1)])
def test_an_epsilon_that_vanishes_in_fp32(epsilon, count):
    findings = found("OPT005", run_of(f"optimizer.eps={epsilon}"))
    assert [(one.path, one.hint) for one in findings] == [
        ("optimizer.eps", "set optimizer.eps to 1e-08, the usual value")
    ] * count


@pytest.mark.parametrize(("alpha", "count"), [(512, 0), (513, 1)])
def test_a_factor_on_an_adapter_that_no_rate_fits(alpha, count):
    findings = found("TSK008", run_of(*FINE_TUNED, "adapter.type=lora", f"adapter.alpha={alpha}"))
    assert [(one.path, one.severity, one.hint) for one in findings] == [
        ("adapter.alpha", Severity.WARN, "set adapter.alpha to 16, twice adapter.r")
    ] * count


@pytest.mark.parametrize(("max_steps", "count"), [(8, 0), (7, 1)])
def test_a_second_moment_of_eight_steps(max_steps, count):
    run = run_of("optimizer.betas=[0.9, 0.875]", f"trainer.max_steps={max_steps}")
    assert len(found("OPT007", run)) == count


def test_lion_has_no_second_moment():
    assert found("OPT007", run_of("optimizer.betas=[0.9, 0.999]", "trainer.max_steps=500"))
    lion = ("optimizer.name=lion", "optimizer.betas=[0.9, 0.999]", "trainer.max_steps=500")
    assert found("OPT007", run_of(*lion)) == []


@pytest.mark.parametrize("shortens", [True, False])
def test_a_run_that_the_command_line_shortens_is_not_blamed(shortens, tmp_path):
    file = tmp_path / "run.yaml"
    steps = "" if shortens else "  max_steps: 10\n"
    file.write_text(f"profile: cpu-demo\ntrainer:\n  eval_steps: 50\n{steps}", encoding="utf-8")
    run = resolve_run(None, [file], ["trainer.max_steps=10"] * shortens)
    assert [one.severity for one in found("SCH001", run)] == [Severity.WARN if shortens else None]
    assert len(found("SCH004", run)) == (not shortens)
    stated = resolve_run(None, [file], ["trainer.max_steps=10", "trainer.eval_steps=50"])
    assert len(found("SCH004", stated)) == 1
