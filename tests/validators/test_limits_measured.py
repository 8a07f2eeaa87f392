"""Limits on what was measured of devices, ranks, text and steps: just at them, and just beyond."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import pytest

from neobert.plan.hardware import CARDS
from tests.validators.judging import FACTS, found, run_of
from validators.facts import Facts
from validators.finding import Severity
from validators.rule import RULES, CannotTellError
from validators.rules.dst import PCIE_LANE_BYTES_PER_S, _most_common
from validators.rules.gpu_health import _bus
from validators.rules.mod import _heads, _most_shrunk

A100 = next(card for card in CARDS if card.name == "A100")
TWO = run_of("distributed.nproc_per_node=2")


def with_facts(group: str, **changes: Any) -> Facts:
    return replace(FACTS, **{group: replace(getattr(FACTS, group), **changes)})


def with_prepared(**changes: Any) -> Facts:
    return with_facts("inspection", prepared=replace(FACTS.inspection.prepared, **changes))


def with_part(part: str, **changes: Any) -> Facts:
    return with_facts("rehearsal", **{part: replace(getattr(FACTS.rehearsal, part), **changes)})


def with_device(**changes: Any) -> Facts:
    return replace(FACTS, devices=(replace(FACTS.devices[0], **changes),))


def healthy(*changes: dict[str, Any]) -> Any:
    return tuple(replace(FACTS.gpu_health[0], **more) for more in changes)


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "path"),
    [((), "dataset.name"), (("dataset.path=corpus", "dataset.name=null"), "dataset.path")],
)
def test_the_key_that_names_the_text_is_named(overrides: tuple[str, ...], path: str) -> None:
    (one,) = found("DAT001", run_of(*overrides), with_facts("data", exists=False))
    assert one.path == path


@pytest.mark.parametrize(
    ("overrides", "path"),
    [((), "tokenizer.name"), (("tokenizer.path=tokens", "tokenizer.name=null"), "tokenizer.path")],
)
def test_the_key_that_names_the_tokenizer_is_named(overrides: tuple[str, ...], path: str) -> None:
    (one,) = found("DAT001", run_of(*overrides), with_facts("data", tokenizer_exists=False))
    assert one.path == path


@pytest.mark.parametrize(
    ("epochs", "severities"),
    [(4.0, []), (4.01, [Severity.WARN]), (40.0, [Severity.WARN]), (40.01, [None])],
)
def test_text_that_is_read_again(epochs: float, severities: list[Any]) -> None:
    assert [one.severity for one in found("DAT004", run_of(), with_prepared(epochs=epochs))] == severities


@pytest.mark.parametrize(
    ("histogram", "longest"),
    [(((64, 1), (128, 1)), "64"), (((64, 1), (128, 2)), "128"), (((64, 2), (128, 1), (256, 1)), "64"),
     (((64, 1), (128, 1), (256, 3)), "256")],
)  # fmt: skip
def test_the_median_document(histogram: Any, longest: str) -> None:
    (one,) = found("DAT005", run_of(), with_prepared(histogram=histogram, dropped_share=0.5))
    assert f"half of the documents have at most {longest} tokens" in one.message


@pytest.mark.parametrize(("share", "count"), [(0.75, 0), (0.7500001, 1), (0.25, 0), (0.2499999, 1)])
def test_five_deviations(share: float, count: int) -> None:
    """Of a hundred fair draws: 5 x sqrt(0.25 / 100) is exactly a quarter."""
    run = run_of("datacollator.mlm_probability=0.5")
    assert len(found("NUM006", run, with_prepared(num_maskable=100, masked_share=share))) == count


@pytest.mark.parametrize(("share", "count"), [(0.05, 0), (0.0501, 1)])
def test_text_that_stands_in_both(share: float, count: int) -> None:
    assert len(found("DAT006", run_of(), with_part("overlap", shared_share=share))) == count


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "limit"), [("distributed_loss", 1e-5), ("distributed_grad_norm", 1e-4)])
def test_ranks_agree_to_the_last_digits_of_fp32(field: str, limit: float) -> None:
    ones = dict.fromkeys(
        ("distributed_loss", "single_loss", "distributed_grad_norm", "single_grad_norm"), 0.0
    )
    ones |= {
        "single_loss": 1.0,
        "single_grad_norm": 1.0,
        "distributed_loss": 1.0,
        "distributed_grad_norm": 1.0,
    }

    def said(value: float) -> int:
        loss = replace(FACTS.distributed.loss, **(ones | {field: value}))
        return len(found("DST006", TWO, with_facts("distributed", loss=loss)))

    assert said(1 + 0.995 * limit) == said(1 - 0.995 * limit) == 0
    assert said(1 + 1.005 * limit) == said(1 - 1.005 * limit) == 1


def test_a_loss_of_nothing_is_the_same_as_nothing() -> None:
    zeros = replace(FACTS.distributed.loss, distributed_loss=0.0, single_loss=0.0)
    assert found("DST006", TWO, with_facts("distributed", loss=zeros)) == []


def test_what_a_lane_carries_is_that_of_its_generation() -> None:
    """8/10 coding at 2.5 and 5 GT/s, 128/130 from 8 GT/s on, 242/256 at 64 GT/s; one way, in GB/s."""
    coded = {
        1: 2.5 * 0.8,
        2: 5 * 0.8,
        3: 8 * 128 / 130,
        4: 16 * 128 / 130,
        5: 32 * 128 / 130,
        6: 64 * 242 / 256,
    }
    assert pytest.approx({g: gt / 8 * 1e9 for g, gt in coded.items()}, rel=2e-3) == PCIE_LANE_BYTES_PER_S


@pytest.mark.parametrize(
    "links", [[{"num_nvlinks": 12}, {"num_nvlinks": 4}], [{"num_nvlinks": 4}, {"num_nvlinks": 12}]]
)
def test_the_slowest_link_counts(links: list[dict[str, Any]]) -> None:
    """Four NVLinks carry 100 GB/s, and two fifths of them have to arrive."""
    health = healthy(*links)
    for rate, count in ((40e9, 0), (39.9e9, 1)):
        distributed = replace(FACTS.distributed, bus_bytes_per_s=rate)
        facts = replace(FACTS, gpu_health=health, distributed=distributed)
        assert len(found("DST003", TWO, facts)) == count


def test_one_link_that_nobody_described_leaves_all_unknown() -> None:
    nothing = {"num_nvlinks": 0, "pcie_generation_max": None, "pcie_width": None}
    with pytest.raises(CannotTellError):
        found("DST003", TWO, replace(FACTS, gpu_health=healthy({}, nothing)))


def test_gpus_that_cannot_reach_each_other_warn() -> None:
    facts = replace(with_facts("distributed", has_peer_access=False), gpu_health=healthy({}, {}))
    (one,) = found("DST003", TWO, facts)
    assert one.severity is Severity.WARN


@pytest.mark.parametrize(
    ("said", "usual"), [({0: "a", 1: "b", 2: "b"}, "b"), ({0: "a", 1: "a", 2: "b"}, "a")]
)
def test_most_ranks_are_right(said: dict[int, str], usual: str) -> None:
    assert _most_common(said) == usual


@pytest.mark.parametrize(
    ("senders", "said"), [((), "no single part is wrong"), ((1,), "the part of rank 1 arrives wrong")]
)
def test_who_sent_what_is_wrong(senders: tuple[int, ...], said: str) -> None:
    wrong = replace(FACTS.distributed.collectives[0], wrong_at=(0,), wrong_from=senders)
    (one,) = found("DST002", TWO, with_facts("distributed", collectives=(wrong,)))
    assert said in one.message


@pytest.mark.parametrize(("missed", "said"), [((), "missed nobody"), ((0,), "missed rank 0")])
def test_the_drill_names_whom_it_missed(missed: tuple[int, ...], said: str) -> None:
    (one,) = found("DST004", TWO, with_facts("distributed", drill_absent=missed))
    assert said in one.message


def test_links_are_judged_between_gpus_only() -> None:
    skipped = RULES["DST003"].inapplicable
    assert skipped(TWO, None) == ""
    assert skipped(run_of(), None) == "a node has one process"
    assert skipped(run_of("distributed.nproc_per_node=2", profile="cpu-demo"), None)
    assert skipped(run_of("distributed.nproc_per_node=2", profile=None), None)


# --- devices --------------------------------------------------------------------------------------


def test_a_run_without_a_profile_needs_a_gpu_a_process() -> None:
    run = run_of("distributed.nproc_per_node=2", profile=None)
    assert [one.message for one in found("GPU001", run)] == ["1 GPUs are visible and 2 are needed"]
    assert found("GPU001", run_of(profile=None)) == []
    (one,) = found("GPU001", run_of("distributed.nnodes=1"), replace(FACTS, gpus=()))
    assert one.message == "0 GPUs are visible and 1 are needed"


@pytest.mark.parametrize(
    "changes",
    [{"retired_pages": 1, "is_retirement_pending": False},
     {"uncorrected_errors": None, "is_remap_pending": None, "recovery_action": None}],
)  # fmt: skip
def test_what_may_be_a_weak_card_only_warns(changes: dict[str, Any]) -> None:
    (one,) = found("GPU003", run_of(), replace(FACTS, gpu_health=healthy(changes)))
    assert one.severity is Severity.WARN


@pytest.mark.parametrize("place", ["0000:3b:00", "00000000:3B:00.0"])
def test_a_bus_is_written_in_hexadecimal(place: str) -> None:
    assert _bus(place) == (0, 59, 0)


@pytest.mark.parametrize(
    ("share", "burst", "severities"),
    [
        (0.60, 0.75, []),
        (0.60, 0.7499, [Severity.WARN]),
        (0.5999, 0.9, [None]),
        (0.75, 0.0, []),
        (0.7499, 0.0, [Severity.WARN]),
    ],
)
def test_products_of_the_data_sheet(share: float, burst: float, severities: list[Any]) -> None:
    peak = A100.bf16_flops
    facts = with_device(gemm_flops=share * peak, burst_flops=burst * peak)
    assert [one.severity for one in found("GPU005", run_of(), facts)] == severities


def test_no_device_is_no_slow_one() -> None:
    assert found("GPU005", run_of(), replace(FACTS, devices=())) == []


@pytest.mark.parametrize(("rate", "count"), [(15.76e9, 0), (15.75e9, 1)])
def test_half_of_what_sixteen_lanes_carry(rate: float, count: int) -> None:
    facts = replace(with_device(host_bytes_per_s=rate), gpu_health=healthy({"pcie_generation_max": 4}))
    said = [one.message for one in found("GPU006", run_of(), facts)]
    assert len(said) == count
    assert all("of 32 GB/s" in message for message in said)


@pytest.mark.parametrize("changes", [{"pcie_width": None}, {"pcie_generation_max": None}])
def test_a_link_that_nobody_described_is_not_judged(changes: dict[str, Any]) -> None:
    facts = replace(with_device(host_bytes_per_s=1.0), gpu_health=healthy(changes))
    assert found("GPU006", run_of(), facts) == []
    assert found("GPU006", run_of(), replace(facts, gpu_health=())) == []


@pytest.mark.parametrize(("profile", "count"), [("a100-prod", 1), ("cpu-demo", 0), (None, 0)])
def test_torch_without_cuda_matters_where_a_gpu_is_required(profile: str | None, count: int) -> None:
    assert len(found("HST008", run_of(profile=profile), with_facts("imports", cuda_version=""))) == count


# --- sizes and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "count"), [(0.5, 0), (0.499, 1), (1.5, 0), (1.501, 1)])
def test_memory_as_predicted(ratio: float, count: int) -> None:
    parts = ("weights_mib", "gradients_mib", "optimizer_mib", "activations_mib", "logits_mib", "runtime_mib")
    plan = dict.fromkeys(parts, 0.0) | {"weights_mib": 10_000.0}
    facts = with_part("memory", peak_allocated_mib=int(10_000 * ratio), context_mib=0, peak_reserved_mib=0)
    said = [one for one in found("MEM002", run_of(), facts, **plan) if "predicted" in one.message]
    assert len(said) == count


@pytest.mark.parametrize(("growth", "count"), [(2.0, 0), (2.001, 1)])
def test_growth_of_a_hundredth_in_fifty_steps(growth: float, count: int) -> None:
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
def test_the_key_that_took_most_is_named(sizes: tuple[int, int, int], key: str) -> None:
    model = run_of().config.model
    names = ("hidden_size", "num_hidden_layers", "intermediate_size")
    small = replace(model, **dict(zip(names, sizes, strict=True)))
    assert _most_shrunk(small, model) == f"model.{key}"


@pytest.mark.parametrize(
    ("hidden", "on_gpu", "said"),
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
def test_heads_that_kernels_take_and_that_turn_in_pairs(hidden: int, on_gpu: bool, said: int) -> None:
    config = run_of().config
    model = replace(config.model, hidden_size=hidden, num_attention_heads=1, rope=True)
    assert len(list(_heads(replace(config, model=model), on_gpu=on_gpu))) == said
    without = replace(config, model=replace(model, rope=False))
    assert len(list(_heads(without, on_gpu=False))) == 0


def other_memory(is_on: bool) -> float:
    from neobert.plan import build_plan
    from validators.planning import assumptions_of

    run = run_of(f"trainer.gradient_checkpointing={str(not is_on).lower()}")
    return build_plan(run.config, assumptions_of(run)).memory_mib.value


@pytest.mark.parametrize(("step", "count"), [(0.0, 0), (1.0, 1)])
def test_checkpointing_that_would_leave_half_of_the_device_empty(step: float, count: int) -> None:
    device = 2 * other_memory(True) + step
    run = run_of("trainer.gradient_checkpointing=true")
    assert len(found("MOD003", run, device_memory_mib=device)) == count


@pytest.mark.parametrize(("more", "count"), [(0.0, 0), (0.5, 1)])
def test_checkpointing_that_would_make_it_fit(more: float, count: int) -> None:
    device = 100_000.0
    run = run_of("trainer.gradient_checkpointing=false", "model.kernel_backend=torch")
    said = found("MOD003", run, device_memory_mib=device, memory_mib=0.9 * device + more)
    assert len(said) == count
    assert all("with model.kernel_backend torch" not in one.hint for one in said)


def test_own_kernels_have_to_go_for_checkpointing() -> None:
    run = run_of("model.kernel_backend=triton", "model.attn_backend=auto")
    (one,) = found("MOD003", run, device_memory_mib=100_000.0, memory_mib=95_000.0)
    assert "with model.kernel_backend torch" in one.hint


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "count"), [(1.149, 0), (1.151, 1), (0.851, 0), (0.849, 1)])
def test_a_new_model_knows_nothing(ratio: float, count: int) -> None:
    first = log(FACTS.rehearsal.learning.vocab_size) * ratio
    facts = with_part("learning", initial_loss=first)
    assert len(found("NUM005", run_of(), facts)) == count
    trained = run_of("model.pretrained_checkpoint=checkpoints/9")
    assert found("NUM005", trained, facts) == []


@pytest.mark.parametrize(("last", "count"), [(97.9, 0), (98.0, 1), (98.1, 1)])
def test_one_batch_is_learned(last: float, count: int) -> None:
    overfit = replace(FACTS.rehearsal.learning.overfit, first=100.0, last=last)
    assert len(found("NUM005", run_of(), with_part("learning", overfit=overfit))) == count


@pytest.mark.parametrize(
    ("overrides", "path", "rate"),
    [
        (("optimizer.lr=3",), "optimizer.lr", "at 3 "),
        (("optimizer.muon_lr=2", "optimizer.lr=1e-3"), "optimizer.muon_lr", "at 2 "),
    ],
)
def test_the_rate_that_moves_too_much_is_named(overrides: tuple[str, ...], path: str, rate: str) -> None:
    (one,) = found("OPT002", run_of("optimizer.name=muon", *overrides))
    assert (one.path, one.message[: len(rate)]) == (path, rate)


@pytest.mark.parametrize(("factor", "count"), [(0.2, 0), (0.201, 1), (0.002, 0), (0.00199, 1)])
def test_a_step_of_original_moves_by_its_width(factor: float, count: int) -> None:
    """On 10,000 channels, with weights uniform in +-sqrt(3): the share is the rate / 100 * 125 of 25 %."""
    run = run_of(
        "optimizer.name=muon", "optimizer.muon_adjust_lr_fn=original", f"optimizer.lr={factor * 125}"
    )
    config = run.config
    model = replace(config.model, hidden_size=10_000, decoder_init_range=3**0.5)
    run = replace(run, config=replace(config, model=model))
    assert len(found("OPT002", run)) == count


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("a100-prod", "judges production"),
        (None, "judges production"),
        ("cpu-demo", "no tensor cores"),
        ("gpu-smoke", ""),
    ],
)
def test_idle_tensor_cores_are_a_matter_of_smoke_on_gpus(profile: str | None, reason: str) -> None:
    said = RULES["PRE004"].inapplicable(run_of(profile=profile), None)
    assert reason in said
    assert bool(said) is bool(reason)


@pytest.mark.parametrize(("capability", "count"), [((8, 0), 0), ((7, 9), 1), ((7, 5), 1)])
def test_bf16_begins_with_ampere(capability: tuple[int, int], count: int) -> None:
    facts = replace(FACTS, gpus=(replace(FACTS.gpus[0], compute_capability=capability),))
    assert len(found("PRE002", run_of(), facts)) == count


@pytest.mark.parametrize(("factor", "count"), [(1 + 0.995e-6, 0), (1 + 1.005e-6, 1)])
def test_the_rate_is_the_planned_one_to_a_millionth(factor: float, count: int) -> None:
    lines = tuple(
        replace(line, learning_rate=line.learning_rate * factor) for line in FACTS.rehearsal.schedule
    )
    assert len(found("SCH002", run_of(), with_facts("rehearsal", schedule=lines[:1]))) == count


def test_products_in_no_declared_precision_are_none_of_it() -> None:
    (one,) = found("PRE003", run_of(), with_part("precision", product_flops={"float16": 1.0}))
    assert "float16 100%" in one.message


def test_rotations_at_the_limit_are_right() -> None:
    paths = FACTS.numerics.paths
    for error, count in ((2.0**-10, 0), (2.0**-10 + 2.0**-30, 1)):
        rotation = replace(paths[0].probes.rotation, largest_error=error)
        path = replace(paths[0], probes=replace(paths[0].probes, rotation=rotation))
        said = [one.message for one in found("NUM002", run_of(), with_facts("numerics", paths=(path,)))]
        assert len([message for message in said if "computed in fp32" in message]) == count
