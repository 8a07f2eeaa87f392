"""The rules over numbers, beyond their fixtures: every kind of fault, every kind of doubt."""

from dataclasses import asdict, replace

import pytest

from tests.validators.judging import FACTS
from validators.finding import Severity, Status
from validators.numerics_faults import count_detected_faults

FIRST = "facts.numerics.paths.0"
PROBES = f"{FIRST}.probes"
ATOMS = {f"{PROBES}.repeats.tensors_moved": 4, f"{PROBES}.repeats.gradient_moved": 1e-4}
OWN = {f"{FIRST}.attention": "triton_packed", f"{FIRST}.dispatched": "triton_packed"}

FAULTS = [
    # code, base, what varies, failing, passing, part of the message
    ("NUM001", {}, f"{PROBES}.isolation.largest_cross_gradient", 1e-9, 0.0, "(must be 0)"),
    ("NUM001", {}, f"{PROBES}.padding.leaked_tokens", 1, 0, "the padding"),
    ("NUM001", {}, f"{PROBES}.padding.largest_cross_gradient", 1e-9, 0.0, "the padding"),
    ("NUM001", {}, f"{PROBES}.isolation.responding", 12, 13, "did not change"),
    ("NUM001", {}, f"{PROBES}.isolation.smallest_own_gradient", 0.0, 0.1, "no gradient"),
    ("NUM001", {}, f"{FIRST}.dispatched", "sdpa", "torch_varlen", "torch_varlen was resolved, but sdpa ran"),
    ("NUM001", {}, f"{FIRST}.dispatched", "", "torch_varlen", "an unreported kernel ran"),
    ("NUM001", {}, f"{FIRST}.mutants.0.probes.isolation.leaked_tokens", 0, 1, "missed a planted fault"),
    ("NUM001", {}, f"{FIRST}.mutants.1.probes.padding.leaked_tokens", 0, 1, "one padding key heard"),
    ("NUM002", {}, f"{PROBES}.parity.forward_max_ratio", 2.01, 2.0, "maximum error of the logits"),
    ("NUM002", {}, f"{PROBES}.parity.backward_max_ratio", 2.01, 2.0, "maximum error of the gradients"),
    ("NUM002", {}, f"{PROBES}.parity.backward_mean_ratio", 2.01, 2.0, "mean error of the gradients"),
    ("NUM002", {}, f"{PROBES}.parity.is_finite", False, True, "not finite"),
    ("NUM002", {}, f"{PROBES}.rotation.misplaced", 1, 0, "do not restart"),
    ("NUM002", {}, f"{PROBES}.rotation.largest_error", 0.00098, 0.00097, "reached by fp32"),
    ("NUM002", {f"{PROBES}.rotation.max_position": 8192},
     f"{PROBES}.rotation.largest_error", 0.00196, 0.00195, "reached by fp32"),
    ("NUM002", {}, f"{FIRST}.is_long_finite", False, True, "one document of 1,024 tokens"),
    ("NUM002", {}, "facts.numerics.initial_loss", 11.88, 11.87, "a new model's loss"),
    ("NUM002", {}, "facts.numerics.initial_loss", 8.77, 8.78, "a new model's loss"),
    ("NUM003", {}, f"{PROBES}.direction.late_moved", 7, 8, "does not attend to earlier ones"),
    ("NUM003", {f"{PROBES}.direction.early_moved": 0, f"{PROBES}.direction.late_moved": 0},
     f"{PROBES}.direction.documents", 0, 0, "does not attend to earlier ones"),
    ("NUM004", ATOMS, f"{FIRST}.attention", "triton_packed", "torch_varlen", "differ in 4 gradients"),
    ("NUM004", ATOMS, f"{FIRST}.attention", "flex", "sdpa", "differ in 4 gradients"),
    ("GPU005", {"facts.devices.0.burst_flops": 2.33e14},
     "facts.devices.0.name", "NVIDIA A100-SXM4-80GB", "NVIDIA A40",
     "233 TFLOP/s at best, 75% of the data sheet's 312"),
    ("GPU005", {"facts.devices.0.gemm_flops": 1.9e14},
     "facts.devices.0.burst_flops", 2.33e14, 2.35e14, "at best"),
    ("GPU006", {}, "facts.gpu_health.0.pcie_width", 8, 16, "8 of 16 PCIe lanes"),
    ("GPU006", {}, "facts.devices.0.host_bytes_per_s", 1.57e10, 1.58e10, "a copy from the host"),
]  # fmt: skip


@pytest.mark.parametrize("row", FAULTS, ids=[f"{row[0]}-{row[2].rpartition('.')[2]}" for row in FAULTS])
def test_a_fault_is_named_and_its_neighbour_is_not(row, judge_situation):
    code, base, key, failing, passing, fragment = row
    output = [finding.message for finding in judge_situation(base | {key: failing}).of(code)]
    assert any(fragment in message for message in output), output
    if passing != failing:
        output = [finding.message for finding in judge_situation(base | {key: passing}).of(code)]
        assert not any(fragment in message for message in output), output


DOUBTS = [
    ("NUM001", {f"{PROBES}.isolation": None}, "isolation was not measured"),
    ("NUM001", {f"{PROBES}.isolation.unstable": 1e-6}, "cannot be distinguished from noise"),
    ("NUM001", {f"{PROBES}.isolation.unstable": 1e-6, f"{PROBES}.isolation.leaked_tokens": 9}, "from noise"),
    ("NUM001", {f"{FIRST}.mutants": []}, "no fault was planted for isolation"),
    ("NUM002", {f"{PROBES}.rotation": None}, "rotation was not measured"),
    ("NUM002", {f"{FIRST}.error": "OutOfMemoryError: of memory"}, "stopped: OutOfMemoryError"),
    ("NUM003", {"facts.numerics.paths": []}, "no path was probed"),
    ("NUM004", {"facts.numerics": None}, "numerics"),
    ("GPU005", {"facts.devices.0.name": "Some Card"}, "data-sheet values"),
    ("GPU006", {"facts.devices.0.name": "Some Card"}, "data-sheet values"),
    ("GPU007", {"facts.devices.0.answers": 0}, "no known product"),
    ("GPU007", {"facts.devices": None}, "devices"),
]


@pytest.mark.parametrize(("code", "situation", "reason"), DOUBTS)
def test_what_cannot_be_told_is_unknown_and_no_pass(code, situation, reason, judge_situation):
    check = judge_situation(situation).checks[code]
    assert check.status is Status.UNKNOWN
    assert reason in check.message


PLANTED = {
    "isolation": "NUM001",
    "padding": "NUM001",
    "direction": "NUM003",
    "parity": "NUM002",
    "rotation": "NUM002",
    "repeats": "NUM004",
}


@pytest.mark.parametrize("probe", PLANTED)
def test_a_planted_fault_that_nobody_sees_speaks_against_its_own_probe(probe, judge_situation):
    """Where it did no harm, the probe measures what it measures without it."""
    (path,) = FACTS.numerics.paths
    harmless = [
        asdict(replace(one, probes=path.probes) if one.probe == probe else one) for one in path.mutants
    ]
    judged = judge_situation({f"{FIRST}.mutants": harmless})
    assert {one.code for one in judged.findings if "planted fault" in one.message} == {PLANTED[probe]}


@pytest.mark.parametrize("probe", PLANTED)
def test_a_fault_that_was_not_planted_is_missed_by_its_own_probe(probe, judge_situation):
    others = [asdict(one) for one in FACTS.numerics.paths[0].mutants if one.probe != probe]
    checks = judge_situation({f"{FIRST}.mutants": others}).checks.values()
    output = {check.id: check.message for check in checks if "no fault was planted" in check.message}
    assert set(output) == {PLANTED[probe]}
    assert output[PLANTED[probe]].endswith(f"no fault was planted for {probe}")


@pytest.mark.parametrize("base", [{f"{FIRST}.error": "RuntimeError: x"}, {f"{PROBES}.padding": None}])
def test_a_fault_outweighs_a_doubt(base, judge_situation):
    judged = judge_situation(base | {f"{PROBES}.isolation.leaked_tokens": 1})
    assert judged.status("NUM001") is Status.FAIL


def test_a_gradient_that_crosses_is_a_fault_however_noisy_the_kernel(judge_situation):
    noisy = {f"{PROBES}.isolation.unstable": 1e-3, f"{PROBES}.isolation.largest_cross_gradient": 1e-3}
    assert judge_situation(noisy).status("NUM001") is Status.FAIL


def test_a_causal_model_is_held_to_what_it_declares(judge_situation):
    causal = {f"{FIRST}.declared": "causal", f"{FIRST}.mutants.2.probes.direction.early_moved": 8}
    deaf = causal | {f"{PROBES}.direction.early_moved": 0}
    assert judge_situation(deaf).status("NUM003") is Status.PASS
    (finding,) = judge_situation(causal).of("NUM003")
    assert "early tokens attend to later ones in 8 documents of a causal model" in finding.message


def test_a_compiled_path_is_asked_for_what_it_can_show(judge_situation):
    gone = {f"{PROBES}.{name}": None for name in ("padding", "direction", "rotation")}
    compiled = gone | {f"{FIRST}.is_compiled": True, f"{FIRST}.mutants": []}
    judged = judge_situation(compiled)
    assert {judged.status(code) for code in ("NUM001", "NUM002", "NUM003", "NUM004")} == {Status.PASS}
    output = judge_situation(compiled | {f"{PROBES}.isolation.leaked_tokens": 1}).of("NUM001")
    assert "torch, torch_varlen, compiled: 1 tokens attend" in output[0].message


def test_learned_positions_have_no_rotation(judge_situation):
    learned = {f"{PROBES}.rotation": None, "config.model.rope": False}
    assert judge_situation(learned).status("NUM002") is Status.PASS


def test_gradients_that_atomics_add_up_are_declared(judge_situation):
    assert judge_situation(ATOMS).of("NUM004") == []
    assert judge_situation(ATOMS | OWN).of("NUM004")[0].severity is Severity.WARN


@pytest.mark.parametrize(
    ("kept_busy", "burst", "severity"),
    [
        (1.87e14, 2.6e14, "fail"), (1.87e14, 1.87e14, "fail"), (1.88e14, 2.33e14, "warn"),
        (2.33e14, None, "warn"),
    ],
)  # fmt: skip
def test_a_slow_gpu_warns_before_it_fails(kept_busy, burst, severity, judge_situation):
    rates = {"facts.devices.0.gemm_flops": kept_busy, "facts.devices.0.burst_flops": burst}
    (finding,) = judge_situation(rates).of("GPU005")
    assert finding.severity == severity


@pytest.mark.parametrize("kept_busy", [6.9e14, 7.35e14])
def test_a_sound_card_at_its_power_limit_is_no_slow_one(kept_busy, judge_situation):
    """What a sound H200 reaches at 700 W, and before that."""
    at_the_limit = {
        "facts.devices.0.name": "NVIDIA H200",
        "facts.devices.0.gemm_flops": kept_busy,
        "facts.devices.0.burst_flops": 7.9e14,
    }
    assert judge_situation(at_the_limit).of("GPU005") == []


@pytest.mark.parametrize(
    ("count", "moved", "says"),
    [
        (1, ["model.encoder.weight"], "the gradient of model.encoder.weight, by up to 0.0001"),
        (2, ["a", "b"], "the gradient of a and b,"),
        (3, ["a", "b", "c"], "3 gradients, the first of a,"),
        (3, [], "3 gradients, by up to"),
        (1, [], "1 gradient, by up to"),
    ],
)
def test_gradients_that_do_not_repeat_are_named(count, moved, says, judge_situation):
    found = {f"{PROBES}.repeats.tensors_moved": count, f"{PROBES}.repeats.moved": moved}
    (finding,) = judge_situation(ATOMS | OWN | found).of("NUM004")
    assert says in finding.message


def two_devices(slower: float) -> list[dict[str, object]]:
    device = {
        "name": "NVIDIA A100-SXM4-80GB", "answers": 24, "wrong_answers": 0,
        "copy_bytes_per_s": 1.7e12, "host_bytes_per_s": 2.4e10,
    }  # fmt: skip
    return [{**device, "index": 0, "gemm_flops": 3.0e14}, {**device, "index": 1, "gemm_flops": slower}]


@pytest.mark.parametrize(("slower", "is_slow"), [(2.69e14, True), (2.7e14, False)])
def test_a_gpu_is_held_against_the_fastest_of_the_run(slower, is_slow, judge_situation):
    both = {"facts.devices": two_devices(slower), "config.distributed.nproc_per_node": 2}
    assert [f.message for f in judge_situation(both).of("GPU005")] == (
        [
            "GPU 1 (NVIDIA A100-SXM4-80GB): 269 TFLOP/s, but the fastest GPU of the run reaches 300 "
            "(at least 90%)"
        ]
        if is_slow
        else []
    )


def test_a_device_that_the_run_does_not_take_is_not_judged(judge_situation):
    assert judge_situation({"facts.devices": two_devices(1e12)}).of("GPU005") == []


def test_wrong_arithmetic_has_no_waiver(judge_situation):
    waiver = {"code": "GPU007", "reason": "we know this card well", "expires": "2026-12-31"}
    wrong = {"facts.devices.0.wrong_answers": 1, "config.waivers": [waiver]}
    assert judge_situation(wrong).status("GPU007") is Status.FAIL


def test_killed_faults_are_counted():
    assert count_detected_faults(FACTS.numerics) == (6, 6)


def test_numbers_are_judged_on_a_cpu_where_they_were_probed(judge_situation):
    on_cpu = {"profile": "cpu-demo"}
    assert judge_situation(on_cpu).status("NUM001") is Status.SKIP
    record = {"name": "numerics", "status": "timeout", "reason": "killed", "duration_s": 1.0}
    timed_out = on_cpu | {"facts.probes": [record], "facts.numerics": None}
    assert judge_situation(timed_out).status("NUM001") is Status.UNKNOWN
    probed = on_cpu | {"facts.probes": [record], f"{PROBES}.isolation.leaked_tokens": 1}
    assert judge_situation(probed).status("NUM001") is Status.FAIL
