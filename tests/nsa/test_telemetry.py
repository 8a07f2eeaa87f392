"""Metrics of gates and selection, and the guard over them."""

import math
from types import SimpleNamespace

import pytest
import torch

from neobert.errors import ProjectError
from neobert.families.nsa.model import NativeSparseAttention
from neobert.families.nsa.reference import NO_BLOCK, AttentionResult
from neobert.families.nsa.telemetry import attention_metrics
from neobert.training.guards.sparse_attention import LAST_LINES, SETTLED_STEP, SparseAttentionWatch
from neobert.training.loop.hooks import StepReport
from tests.nsa.sizes import LENGTHS, MODEL, SPEC, build, packed
from tests.training import conftest
from tests.training.conftest import beats, corpus, make_run, metrics, outcome, run

__all__ = ["beats", "corpus", "make_run", "metrics", "outcome", "run"]
ONE = SimpleNamespace(size=1, all_reduce_sum=lambda values: values)


def layers_of(backbone):
    return [block.attn for block in backbone.blocks]


def measured(*, change=lambda last: last):
    """Return the metrics of a packed row, without their prefix."""
    backbone = build()
    backbone.hidden(packed())
    layers = layers_of(backbone)
    for layer in layers:
        layer.last = change(layer.last)
    return {name.removeprefix("nsa/"): value for name, value in attention_metrics(layers, SPEC, ONE).items()}


def test_a_row_of_documents_reads_what_their_lengths_predict():
    found = measured()
    reads = sum(SPEC.num_selected_blocks(length) for length in LENGTHS) * 2 * 2  # heads of keys, layers
    assert found["reads_pred"] == found["reads_act_total"] == reads
    assert found["k_mean"] == reads / (sum(LENGTHS) * 4)
    assert found["k_max"] == SPEC.counts
    long = sum(max(0, length - SPEC.size * (SPEC.counts - 1)) for length in LENGTHS)
    assert found["pct_at_max"] == pytest.approx(long / sum(LENGTHS))
    assert found["free_share"] == pytest.approx(long * 4 / reads)  # one block more than the forced three


def test_the_most_blocks_of_a_token_are_those_of_any_rank():
    backbone = build()
    backbone.hidden(packed((3, 9)))
    layers = layers_of(backbone)
    other = torch.zeros(3 + SPEC.counts + 1, dtype=torch.float64)
    other[-1] = 5  # tokens of another rank that read all blocks
    two = SimpleNamespace(
        size=1, all_reduce_sum=lambda values: values + other if values.ndim == 1 else values
    )
    assert attention_metrics(layers, SPEC, ONE)["nsa/k_max"] == 2
    assert attention_metrics(layers, SPEC, two)["nsa/k_max"] == SPEC.counts


def test_before_the_first_step_there_is_nothing_to_report():
    assert attention_metrics(layers_of(build()), SPEC, ONE) == {}


def test_blocks_that_were_not_read_are_missing_in_the_sum():
    def without_one(last):
        blocks = last.blocks.clone()
        blocks[-1, 0, 0] = NO_BLOCK
        return last._replace(blocks=blocks)

    found = measured(change=without_one)
    assert found["reads_act_total"] == found["reads_pred"] - 2


def test_another_selection_has_another_checksum():
    def swapped(last):
        blocks = last.blocks.clone()
        blocks[-1, 0, 3] = 5 if int(blocks[-1, 0, 3]) != 5 else 6
        return last._replace(blocks=blocks)

    assert measured()["selection_checksum"] == measured()["selection_checksum"]
    assert measured()["selection_checksum"] != measured(change=swapped)["selection_checksum"]


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ((0.5, 0.5, 0.5), {"gate_entropy_mean": math.log(3), "max_gate_mean": 1 / 3, "dead_layers": 0}),
        ((0.5, 0.0, 0.5), {"gate_entropy_mean": math.log(2), "branch_share_slc": 0, "dead_layers": 1}),
        ((0.9, 0.004, 0.006), {"collapse_fraction": 1, "gate_saturated_cmp": 0, "gate_saturated_swa": 1}),
        ((0.97, 0.97, 0.97), {"gate_entropy_mean": math.log(3), "gate_saturated_cmp": 1, "dead_layers": 1}),
    ],
)
def test_gates_of_which_the_statistics_are_known(gates, expected):
    found = measured(change=lambda last: last._replace(gates=torch.tensor(gates).expand(last.gates.shape)))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def line(**changes):
    sound = {
        "dead_layers": 0.0,
        "gate_entropy_mean": 1.0,
        "max_gate_mean": 0.4,
        "reads_pred": 7.0,
        "reads_act_total": 7.0,
    }
    return {f"nsa/{name}": value for name, value in (sound | changes).items()}


def judged(lines, first_step=1, *, stops=True):
    """Return the names of the warnings and the code of the failure, with the line of each."""
    watch, found = SparseAttentionWatch(), []
    for number, each in enumerate(lines):
        found += [(number, name) for name, _ in watch.judge(first_step + number, each)]
        if failure := watch.failure(StepReport(first_step + number, each), stops=stops):
            return [*found, (number, failure.code)]
    return found


def test_a_dead_gate_is_warned_of_at_the_third_line_and_ends_the_run_at_the_tenth():
    dead, sound = line(dead_layers=0.26), line(dead_layers=0.25)
    assert judged([sound] * 20) == []
    assert judged([dead, dead, sound] * 5) == []
    assert judged([dead] * 20) == [(2, "dead_gate"), (LAST_LINES - 1, "DGR002")]
    assert judged([dead] * 20, stops=False) == [(2, "dead_gate")]


@pytest.mark.parametrize("change", [{"gate_entropy_mean": 0.49}, {"max_gate_mean": 0.91}])
def test_a_collapse_is_warned_of_once_after_the_first_steps(change):
    assert judged([line(**change)] * 4, SETTLED_STEP - 1) == [(2, "gate_collapse")]
    assert judged([line(gate_entropy_mean=0.5, max_gate_mean=0.9)] * 4, SETTLED_STEP) == []


def test_one_block_too_few_ends_the_run_at_once_and_other_models_are_left_alone():
    assert judged([line(reads_act_total=6.0)], stops=False) == [(0, "NSA101")]
    assert judged([{"train/loss": 1.0}] * 3) == []


@pytest.fixture
def sparse(make_run, monkeypatch):
    """Write a tiny run of a model with native sparse attention."""
    monkeypatch.setitem(conftest.TINY, "model", MODEL | {"num_hidden_layers": 1})
    return lambda **sections: make_run(task="causal", datacollator={"pack_sequences": True}, **sections)


def test_a_planted_dead_gate_ends_the_run(sparse, run, outcome, metrics, beats, monkeypatch):
    real = NativeSparseAttention.gates

    def closed(self, x):
        return real(self, x) * torch.tensor([1.0, 2e-9, 1.0])

    monkeypatch.setattr(NativeSparseAttention, "gates", closed)
    with pytest.raises(ProjectError, match="a gate is closed or saturated in 100% of the layers, for 10"):
        run(run_dir := sparse(trainer={"logging_steps": 1}, guard={"on_degradation": "stop"}))
    assert (outcome(run_dir)["step"], outcome(run_dir)["exit_code"]) == (10, 4)
    last, reported = metrics(run_dir)[-1], beats(run_dir)[-1]["nsa"]
    assert reported == {name.removeprefix("nsa/"): last[name] for name in last if name.startswith("nsa/")}
    assert (reported["dead_layers"], reported["branch_share_slc"]) == (1, pytest.approx(0, abs=1e-8))


def test_a_kernel_that_reads_one_block_too_few_ends_the_run(sparse, run, outcome, monkeypatch):
    from neobert.families.nsa import attention

    real = attention.attend_by_reference

    def short(*row):
        found = real(*row)
        blocks = found.blocks.clone()
        blocks[0, 0, 0] = NO_BLOCK
        return AttentionResult(found.context, blocks, found.lse)

    monkeypatch.setattr(attention, "attend_by_reference", short)
    with pytest.raises(ProjectError, match="blocks were selected, but these documents require"):
        run(run_dir := sparse(guard={"on_degradation": "warn"}))
    assert (outcome(run_dir)["step"], outcome(run_dir)["exit_code"]) == (3, 93)
