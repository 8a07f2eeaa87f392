"""The suite on a CPU, over a model small enough for tests."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.objectives import resolve_step_kernels
from neobert.objectives.step_kernels import set_torch_kernels
from neobert.probes.numerics import isolation, leak_batch
from neobert.probes.numerics.path_checks import ProbeSetting
from neobert.probes.numerics.paths import Path, build_path
from neobert.probes.numerics.suite import make_setting, run_suite
from profiles.registry import ResolvedRun, resolve_run
from validators.core import judge
from validators.facts import Facts, ProbeRecord
from validators.facts_io import parse_record
from validators.facts_numerics import NumericsFacts
from validators.finding import CheckResult, Level
from validators.planning import plan_run

SMALL: dict[str, Any] = {
    "model": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 72,
        "attn_backend": "sdpa",
        "kernel_backend": "torch",
        "vocab_size": 512,
    },
    "dataset": {"max_seq_length": 72},
    "trainer": {"mixed_precision": "no"},
}


@pytest.fixture(autouse=True)
def _switches_stay_as_they_were() -> Iterator[None]:
    """The suite computes as the trainer does, which sets what holds for a whole process."""
    before = torch.are_deterministic_algorithms_enabled(), torch.random.get_rng_state()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.random.set_rng_state(before[1])


@pytest.fixture(autouse=True)
def _few_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds matter here: a third of the segments show as much."""
    monkeypatch.setattr(leak_batch, "MANY_SHORT", (3, 9, 22))
    monkeypatch.setattr(isolation, "NUM_VICTIMS", 6)


def small_config(**sections: dict[str, Any]) -> RunConfig:
    return from_dict(
        {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {**SMALL, **sections}}
    )


@pytest.fixture
def configured() -> Callable[..., RunConfig]:
    """A small run with some keys set: `configured(datacollator={...})`."""
    return small_config


@pytest.fixture
def setting() -> ProbeSetting:
    """What all paths of a small run share."""
    config = small_config()
    set_torch_kernels(config, "cpu")
    return make_setting(config, torch.device("cpu"))


@pytest.fixture
def path(setting: ProbeSetting) -> Path:
    """The one path of a CPU."""
    kernels = resolve_step_kernels(setting.config, "cpu", setting.dtype)
    return build_path(setting.config, kernels, setting.vocab_size, setting.device, setting.dtype)


Verdict = dict[str, CheckResult]


def checks_of(run: ResolvedRun, numerics: dict[str, Any]) -> Verdict:
    """Hand what the suite found, as JSON, to the rules as the launcher does; return the checks by code."""
    found = parse_record(NumericsFacts, json.loads(json.dumps(numerics, allow_nan=False)))
    facts = Facts(numerics=found, probes=(ProbeRecord(name="numerics", status="ok"),))
    _, checks = judge(run, plan_run(run), facts, (Level.GPU,))
    return {check.id: check for check in checks if check.id.startswith("NUM")}


@pytest.fixture
def verdict_on() -> Callable[..., Verdict]:
    """Run the suite on a small run, and return the checks by code."""

    def measured(config: RunConfig | None = None) -> Verdict:
        found = run_suite(config or small_config(), "cpu", every=False)
        return checks_of(resolve_run("cpu-demo", [], []), found)

    return measured
