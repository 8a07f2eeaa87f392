"""The count of recompilations can fail: on a CPU padded rows change their width, and are caught."""

from __future__ import annotations

import json
from dataclasses import replace

import compile_stability
import made_up_run
import pytest


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """A tiny run on padded rows, compiled."""
    work = tmp_path_factory.mktemp("text")
    size = replace(made_up_run.TINY, num_layers=1, hidden_size=64)
    made_up_run.write_text(work, size)
    config = made_up_run.run_config(work, work, size, steps=8)
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", "per_device_train_batch_size": 2}
    return work, replace(
        config,
        trainer=replace(config.trainer, **compiled),
        datacollator=replace(config.datacollator, pack_sequences=False),
    )


def test_rows_of_one_width_compile_nothing(padded):
    work, config = padded
    config = replace(config, datacollator=replace(config.datacollator, pad_to_multiple_of=1024))
    found = compile_stability.measure(config, work, 3)
    assert found["compiled_in_warm_up"] > 0
    assert (found["recompiles"], found["graph_breaks"]) == ([], {})


def test_rows_of_many_widths_are_counted_with_reasons(padded, monkeypatch):
    monkeypatch.setattr(compile_stability, "WARM_UP_STEPS", 0)
    work, config = padded
    found = compile_stability.measure(config, work, 3)
    assert any("size mismatch" in each["reason"] for each in found["recompiles"])


def test_planted_faults_are_counted():
    assert compile_stability.planted_faults_are_counted()


def test_a_blind_count_is_told(monkeypatch):
    monkeypatch.setattr(compile_stability, "graph_breaks", dict)
    assert not compile_stability.planted_faults_are_counted()


def test_figures_add_up_and_an_error_has_none(tmp_path):
    clean = {"recompiles": [], "graph_breaks": {}}
    dirty = {"recompiles": [{"reason": "x"}] * 2, "graph_breaks": {"y": 3}}
    compile_stability.write_figures(tmp_path, {"auto": clean, "torch": dirty})
    read = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("recompiles", "graph-breaks")]
    assert [figure["value"] for figure in read] == [2, 3]
    compile_stability.write_figures(tmp_path, {"auto": clean, "torch": {"error": "planted"}})
    assert json.loads((tmp_path / "recompiles.json").read_text())["value"] is None
