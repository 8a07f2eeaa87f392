"""What is compiled behind the warm-up is counted and told with its reason; a planted one is seen."""

import pytest
import torch

from neobert.training.guards import degradation
from neobert.training.guards.degradation import CompilationLog

pytestmark = pytest.mark.usefixtures("fresh_compiler")

PADDED = {"pack_sequences": False}
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}


def double(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x * times


def test_a_recompilation_is_told_once_with_its_reason():
    log, compiled = CompilationLog(), torch.compile(double, dynamic=False, backend="eager")
    log.take()
    compiled(torch.ones(2))
    assert [(each.function, each.reason) for each in log.take()] == [("double", degradation.FIRST_TIME)]
    compiled(torch.zeros(2))
    assert log.take() == []
    compiled(torch.ones(3))
    compiled(torch.ones(3), times=5)
    shape, value = log.take()
    assert "size mismatch" in shape.reason
    assert "times" in value.reason
    assert "\n" not in value.reason
    assert log.take() == []


def test_a_backward_graph_is_no_compilation_of_its_own():
    log = CompilationLog()
    log.take()
    torch.compile(double, backend="aot_eager")(torch.ones(2, requires_grad=True)).sum().backward()
    assert len(log.take()) == 1


def test_rows_of_one_width_compile_nothing_after_warm_up(make_run, run, beats):
    run_dir = make_run(datacollator=PADDED | {"pad_to_multiple_of": 32}, trainer=COMPILED)
    run(run_dir)
    seen = [beat["recompiles"] for beat in beats(run_dir)]
    assert (seen[0], seen[-1]) == (None, 0)


def test_rows_of_many_widths_are_caught(make_run, run, beats, monkeypatch, caplog):
    monkeypatch.setattr(degradation, "WARM_UP_STEPS", 0)
    run_dir = make_run(datacollator=PADDED, trainer=COMPILED)
    run(run_dir)
    reported = [each.message for each in caplog.records if each.name == degradation.__name__]
    assert beats(run_dir)[-1]["recompiles"] == len(reported) >= 2
    assert any("compiled after warm-up" in each and "size mismatch" in each for each in reported)


def test_a_run_that_compiles_nothing_says_null(finished, beats):
    assert {beat["recompiles"] for beat in beats(finished)} == {None}
