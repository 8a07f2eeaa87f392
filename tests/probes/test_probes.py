"""Each probe by itself: what it sees on a sound path, and what would otherwise let it pass for nothing."""

import json
from dataclasses import replace

import pytest
import torch

from neobert.families.table import max_row_length
from neobert.probes.__main__ import main
from neobert.probes.hardware import rates
from neobert.probes.numerics import parity, suite
from neobert.probes.numerics.isolation import choose_victims, measure_isolation, measure_leak
from neobert.probes.numerics.leak_batch import EDGE_LENGTHS, build_leak_batch, lengths_for
from neobert.probes.numerics.mutants import compiled_mutants, eager_mutants, run_mutants
from neobert.probes.numerics.parity import ReferenceErrors, measure_parity
from neobert.probes.numerics.paths import NUM_LAYERS, UNBOUNDED, build_path, finite_or_infinity, probe_config
from neobert.probes.numerics.rotary import record_rotations
from neobert.probes.numerics.suite import find_candidates, selectable_kernels
from validators.finding import Status


def test_lengths_stand_at_the_edges_of_tiles_and_fill_a_row():
    assert {1, 2, 63, 64, 65, 127, 128, 129, 145, 300} == set(EDGE_LENGTHS)
    assert max(lengths_for(1024)) == 1024
    assert set(EDGE_LENGTHS) <= set(lengths_for(1024))
    assert max(lengths_for(64)) == 64


def test_a_specimen_is_laid_out_as_the_collator_does(setting):
    batch = setting.batch
    inputs = batch.inputs
    bounds = inputs["cu_seqlens"]
    assert torch.equal(bounds[: len(batch.lengths) + 1], torch.tensor([0, *batch.lengths]).cumsum(0))
    assert bounds[-1] == batch.input_ids.numel()
    assert inputs["max_seqlen"] == max_row_length(setting.config)
    assert len(batch.padding) > 0
    assert (batch.input_ids[batch.padding] == 0).all()
    for number, places in enumerate(batch.places):
        assert inputs["position_ids"][places].tolist() == list(range(len(places)))
        ids, own = batch.input_ids[places], batch.own_ids(number)
        assert ((ids >= own.start) & (ids < own.stop)).all()


def test_disturbing_a_segment_changes_all_of_its_tokens_and_no_others(setting):
    batch = setting.batch
    for victim in range(len(batch.places)):
        moved = (batch.with_other_tokens(victim).input_ids != batch.input_ids).nonzero().squeeze(1)
        assert moved.tolist() == batch.places[victim].tolist()
    assert (batch.with_other_padding().input_ids[batch.padding] > 0).all()


def test_the_golden_formulas_are_those_of_the_model(path, setting):
    """In fp64 both: the model's own norms and rotations stay in fp32, which is what is left between them."""
    labels = setting.batch.labels(setting.batch.positions_outside(None))
    answer = parity.plain_logits_and_gradients(
        path.weights, path.model.config, setting.batch, labels, torch.float64
    )
    assert (path.logits(setting.batch, labels) - answer.logits).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("model", "packs"),
    [({"hidden_act": "gelu"}, True), ({"rms_norm": False}, True), ({"rope": False}, False)],
)
def test_ablations_have_their_formulas_too(model, packs, configured, verdict_on):
    config = configured(model=model, datacollator={"pack_sequences": packs})
    checks = verdict_on(config)
    passed = {code for code, check in checks.items() if check.status is Status.PASS}
    assert passed >= (
        {"NUM001", "NUM002", "NUM003", "NUM004"} if model.get("rope", True) else {"NUM001", "NUM003"}
    )


@pytest.mark.parametrize("recompute", [False, True])
def test_padded_rows_are_probed_as_rows(recompute, configured, verdict_on):
    config = configured(datacollator={"pack_sequences": False}, trainer={"gradient_checkpointing": recompute})
    assert {check.status for check in verdict_on(config).values()} == {Status.PASS}


def test_bf16_under_autocast_passes(configured, verdict_on):
    assert {
        check.status for check in verdict_on(configured(trainer={"mixed_precision": "bf16"})).values()
    } == {Status.PASS}


def test_leaks_show_in_the_loss_alone(path, setting):
    """A compiled step gives nothing else away. The eager one is taken for it here."""
    as_compiled = replace(path, is_compiled=True)
    found = measure_isolation(as_compiled, setting.batch, (0, 2, 3))
    assert (found["leaked_tokens"], found["largest_cross_gradient"], found["unstable"]) == (0, 0.0, 0.0)
    assert found["responding"] == found["victims"] == 3
    planted = {mutant.name: mutant for mutant in compiled_mutants(setting.batch)}
    assert len(planted) == 3
    for name in ("cu_seqlens off by one", "two segments merged"):
        assert measure_leak(as_compiled, planted[name].batch, choose_victims(setting.batch))["leaked_tokens"]
    results = run_mutants(as_compiled, setting.batch, ReferenceErrors(path, setting.batch))
    assert [result["probe"] for result in results] == ["isolation"] * 3


def test_faults_are_planted_for_every_probe_and_gone_afterwards(path, setting):
    reference_errors = ReferenceErrors(path, setting.batch)
    before = path.hidden(setting.batch)
    planted = list(eager_mutants(path, setting.batch, reference_errors))
    assert {mutant.probe for mutant in planted} == {
        "isolation", "padding", "direction", "parity", "rotation", "repeats",
    }  # fmt: skip
    run_mutants(path, setting.batch, reference_errors)
    assert torch.equal(path.hidden(setting.batch), before)


def test_parity_is_about_one_and_grows_with_what_is_wrong(path, setting):
    reference_errors = ReferenceErrors(path, setting.batch)
    sound = measure_parity(path, setting.batch, reference_errors)
    assert all(0.3 < ratio < 2 for name, ratio in sound.items() if name.endswith("ratio"))
    with torch.no_grad():
        path.model.model.transformer_encoder[0].wo.weight[0, 0] += 1e-2
    assert measure_parity(path, setting.batch, reference_errors)["forward_max_ratio"] > 2


def test_a_rotation_is_recorded_once_a_forward(path, setting):
    with record_rotations() as tables:
        path.hidden(setting.batch)
    assert len(tables) == 1
    assert tables[0][1].shape == (setting.batch.input_ids.numel(), path.model.config.dim_head)


def test_the_model_is_as_deep_as_planted_faults_believe(path):
    assert path.model.config.num_hidden_layers == NUM_LAYERS


def test_a_new_model_knows_nothing(setting):
    kernels = find_candidates(setting.config, "cpu", setting.dtype, every=False).runnable[0]
    loss = suite.measure_initial_loss(setting, kernels)
    assert loss == pytest.approx(torch.log(torch.tensor(float(setting.vocab_size))).item(), rel=0.02)


def test_every_backend_that_can_be_named_is_tried_and_a_missing_one_says_why(setting):
    candidates = find_candidates(setting.config, "cpu", setting.dtype, every=True)
    assert [(kernels.name, kernels.attention) for kernels in candidates.runnable] == [("torch", "sdpa")]
    assert len(candidates.unavailable) == len(selectable_kernels()) - 1
    assert all(candidates.unavailable.values())


def test_the_known_product_is_exact_in_any_order():
    left, right, answer = rates.known_product(256)
    backwards = left.float().flip(1) @ right.float().flip(0)
    assert torch.equal(backwards.bfloat16(), answer)
    assert torch.equal(backwards, answer.float())
    assert answer.abs().sum() > 0


def test_one_wrong_element_once_is_counted(monkeypatch):
    left, right, answer = rates.known_product(64)
    assert rates.count_wrong(left, right, answer) == 0
    answer[3, 5] += 1
    assert rates.count_wrong(left, right, answer) == rates.ANSWER_REPEATS


def test_no_number_is_larger_than_any():
    assert finite_or_infinity(float("nan")) == finite_or_infinity(float("inf")) == UNBOUNDED
    assert finite_or_infinity(2.5) == 2.5


def test_a_run_for_cuda_is_never_probed_on_a_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([str(tmp_path / "no-such-file.json"), "--device", "cuda"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"unsupported": f"torch {torch.__version__} finds no CUDA device"}


def test_an_error_is_one_sentence_and_a_code(tmp_path, capsys):
    assert main([str(tmp_path / "no-such-file.json"), "--device", "cpu"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_an_odd_path_still_builds(configured):
    """A vocabulary that barely holds two ids a segment."""
    config = configured()
    batch = build_leak_batch(config, 64, lengths_for(72), torch.device("cpu"))
    assert batch.ids_per_segment > 1
    kernels = find_candidates(config, "cpu", torch.float32, every=False).runnable[0]
    path = build_path(probe_config(config, 6), kernels, 64, torch.device("cpu"), torch.float32)
    assert measure_isolation(path, batch, (0,))["leaked_tokens"] == 0
