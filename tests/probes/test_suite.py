"""What holds the probes together: what is shared, what stands apart, where the time goes."""

import dataclasses
import json
import sys

import pytest
import torch

from neobert.config import replace, to_dict
from neobert.objectives import resolve_step_kernels
from neobert.probes.__main__ import probe_run_file
from neobert.probes.hardware import rates
from neobert.probes.numerics import parity, path_checks, suite
from neobert.probes.numerics.path_checks import (
    PathVariant,
    Stopwatch,
    build_variant_path,
    measure_long_context,
)
from neobert.probes.numerics.suite import ParallelPaths, max_parallel_paths, run_suite


@pytest.fixture
def variant(setting):
    return PathVariant(resolve_step_kernels(setting.config, "cpu", setting.dtype), False, True)


def test_the_truth_is_worked_out_once_for_paths_of_the_same_weights(setting, variant, monkeypatch):
    made = []
    sound = parity.plain_logits_and_gradients
    monkeypatch.setattr(
        parity, "plain_logits_and_gradients", lambda *given: made.append(given[-1]) or sound(*given)
    )
    first, second = (build_variant_path(setting, variant.kernels) for _ in range(2))
    assert setting.reference_for(first) is setting.reference_for(second)
    assert made == [torch.float64, torch.float32]


def test_other_weights_have_a_truth_of_their_own(setting, variant):
    path = build_variant_path(setting, variant.kernels)
    before = setting.reference_for(path)
    with torch.no_grad():
        path.model.decoder.bias[3] += 1e-6
    after = setting.reference_for(path)
    assert after is not before
    assert not torch.equal(after.truth.logits, before.truth.logits)


def test_every_phase_of_a_path_is_timed(setting, variant):
    found = path_checks.probe_path(setting, variant)
    assert found["error"] == ""
    assert set(found["durations_s"]) == {
        "model", "first step", "reference", "long document", "mutants", *found["probes"],
    }  # fmt: skip
    assert all(seconds >= 0 for seconds in found["durations_s"].values())


def test_a_phase_that_stops_is_timed_too():
    watch = Stopwatch(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="stopped"), watch.phase("reference"):
        raise RuntimeError("stopped")
    assert list(watch.durations_s) == ["reference"]


def test_the_long_document_has_as_many_places_as_the_specimen(setting, variant, monkeypatch):
    seen = []
    sound = path_checks.build_leak_batch
    monkeypatch.setattr(
        path_checks, "build_leak_batch", lambda *given: seen.append(sound(*given)) or seen[-1]
    )
    measure_long_context(build_variant_path(setting, variant.kernels), setting.batch)
    assert seen[0].lengths == (72,)
    assert seen[0].input_ids.numel() == setting.batch.input_ids.numel()


@pytest.fixture
def resolved_file(setting, tmp_path, configured):
    path = tmp_path / "resolved.json"
    path.write_text(json.dumps(to_dict(configured())), encoding="utf-8")
    return path


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_path_apart_gives_what_it_gives_here(resolved_file, setting, variant):
    there = ParallelPaths(resolved_file).probe(setting, variant)
    here = probe_run_file(resolved_file, "cpu", every=False, label=variant.label)
    assert there["error"] == ""
    assert there.pop("durations_s").keys() - here.pop("durations_s").keys() == {"process"}
    # The file's process has all segments, this one a third of them.
    assert there["probes"].keys() == here["probes"].keys()
    assert [mutant["name"] for mutant in there["mutants"]] == [mutant["name"] for mutant in here["mutants"]]
    assert there["is_resolved"] is here["is_resolved"] is True


def test_a_process_that_dies_stops_its_own_path_alone(resolved_file, setting, variant, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '{}'\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = ParallelPaths(resolved_file).probe(setting, variant)
    assert found["error"] == "probe process exited with code 3 and printed no result"
    assert (found["kernels"], found["probes"], found["mutants"]) == ("torch", {}, [])


@pytest.mark.parametrize(("workers", "are_apart"), [(1, False), (3, True)])
def test_the_first_path_stays_here_and_the_order_is_kept(workers, are_apart, setting, variant, monkeypatch):
    variants = [
        variant,
        PathVariant(variant.kernels, False, False),
        PathVariant(variant.kernels, True, False),
    ]
    monkeypatch.setattr(suite, "max_parallel_paths", lambda device: workers)
    monkeypatch.setattr(suite, "probe_path", lambda setting, variant: ("here", variant))
    monkeypatch.setattr(ParallelPaths, "probe", lambda self, setting, variant: ("apart", variant))
    where = "apart" if are_apart else "here"
    assert ParallelPaths(None)(setting, variants) == [
        ("here", variants[0]),
        (where, variants[1]),
        (where, variants[2]),
    ]


def test_a_device_with_little_memory_takes_few_paths_at_once(monkeypatch):
    monkeypatch.setattr(suite.os, "sched_getaffinity", lambda _: range(16))
    assert max_parallel_paths(torch.device("cpu")) == 8
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 24 * 2**30))
    assert max_parallel_paths(torch.device("cuda")) == 2


def test_a_suite_hands_its_paths_to_whoever_probes_them(configured):
    found = run_suite(
        configured(), "cpu", every=True, probe=lambda setting, variants: [w.label for w in variants]
    )
    assert found["paths"] == ["torch, sdpa"]


def test_the_best_of_a_burst_counts(monkeypatch):
    windows = iter(range(40, 0, -1))
    rests = []
    monkeypatch.setattr(rates, "_mean_seconds", lambda work, calls: float(next(windows)))
    monkeypatch.setattr(rates.time, "sleep", rests.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert rates._burst_s(lambda: None) == 40 - rates.BURSTS * rates.BURST_WINDOWS + 1
    assert rests == [rates.REST_S] * rates.BURSTS


@pytest.mark.parametrize(
    ("compiles", "every", "paths"), [(False, False, 1), (True, False, 2), (False, True, 2)]
)
def test_a_compiled_path_is_probed_only_for_a_run_that_compiles(setting, compiles, every, paths):
    """Compiling takes ten seconds or more, which a first run would wait for."""
    on_gpu = dataclasses.replace(setting, device=torch.device("cuda"))
    config = replace(setting.config, "trainer.torch_compile", compiles)
    candidates = suite.find_candidates(config, "cpu", setting.dtype, every=every)
    candidates.runnable = [
        dataclasses.replace(candidates.runnable[0], name="triton", attention="triton_packed")
    ]
    assert [each.is_compiled for each in suite.list_variants(on_gpu, candidates)] == [False, True][:paths]
