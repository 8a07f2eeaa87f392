"""The numerical suite on a CUDA device: every kernel is sound, and the faults planted in it are seen."""

import json
from collections.abc import Iterator

import pytest

from neobert.config import from_dict
from neobert.probes.hardware import rates
from neobert.probes.numerics import suite
from profiles.registry import resolve_run
from validators.core import judge
from validators.facts import Facts, ProbeRecord
from validators.facts_io import parse_record
from validators.facts_numerics import NumericsFacts
from validators.finding import CheckResult, Level, Status
from validators.numerics_faults import ATOMIC_GRADIENTS, count_detected_faults
from validators.planning import plan_run

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler and of foreign kernels

CONFIG = from_dict(
    {
        "model": {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 768,
            "max_position_embeddings": 512,
            "vocab_size": 4096,
            "kernel_backend": "torch",
            "attn_backend": "torch_varlen",
        },
        "dataset": {"max_seq_length": 512},
    }
)


def checks_of(numerics: NumericsFacts) -> dict[str, CheckResult]:
    facts = Facts(numerics=numerics, probes=(ProbeRecord(name="numerics", status="ok"),))
    run = resolve_run("gpu-smoke", [], [])
    return {check.id: check for check in judge(run, plan_run(run), facts, (Level.GPU,))[1]}


def test_every_installed_backend_passes_and_every_fault_is_seen():
    found = suite.run_suite(CONFIG, "cuda", every=True)
    numerics = parse_record(NumericsFacts, json.loads(json.dumps(found, allow_nan=False)))
    ended = {code: (check.status, check.message) for code, check in checks_of(numerics).items()}
    judged = {code: ended[code] for code in ("NUM001", "NUM002", "NUM003")}
    assert judged == dict.fromkeys(judged, (Status.PASS, ""))
    assert set(moved_without_atomics(numerics)) == set()
    killed, planted = count_detected_faults(numerics)
    assert killed == planted >= 12 * sum(not path.is_compiled for path in numerics.paths)
    assert any(path.is_compiled for path in numerics.paths)


def moved_without_atomics(numerics: NumericsFacts) -> Iterator[tuple[str, str]]:
    """The gradients that do not repeat where no atomics are declared, with their path."""
    for path in numerics.paths:
        if path.attention not in ATOMIC_GRADIENTS:
            assert path.probes.repeats is not None
            yield from ((path.label, name) for name in path.probes.repeats.moved)


def test_the_devices_know_the_answer_and_are_timed():
    for device in rates.measure_devices():
        assert (device["wrong_answers"], device["answers"]) == (0, rates.ANSWER_REPEATS)
        assert min(device["burst_flops"], device["gemm_flops"]) > 0
        assert device["copy_bytes_per_s"] > device["host_bytes_per_s"] > 0
