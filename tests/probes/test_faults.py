"""Faults in the real model, planted from outside the suite: each is named by its rule."""

import pytest
import torch
import torch.nn.functional as F

from neobert.data.batches import microbatch
from neobert.model import NeoBERT, attention, encoder
from neobert.objectives import TokenObjective
from neobert.probes.numerics import mutants, path_checks
from validators.finding import Status


def test_a_sound_path_passes(verdict_on):
    checks = verdict_on()
    assert {code: check.status for code, check in checks.items()} == dict.fromkeys(
        ("NUM001", "NUM002", "NUM003", "NUM004"), Status.PASS
    )


@pytest.fixture
def leak(monkeypatch):
    """Replace the packed attention's result: `leak(change)` with change(layer, context, q, k, v)."""

    def plant(change):
        sound = encoder.packed_attention

        def leaky(backend, cu_seqlens, max_seqlen, num_tokens):
            attend, layer = sound(backend, cu_seqlens, max_seqlen, num_tokens), [0]

            def attend_leaky(q, k, v):
                out = change(layer[0], attend(q, k, v), q, k, v)
                layer[0] += 1
                return out

            return attend_leaky

        monkeypatch.setattr(encoder, "packed_attention", leaky)

    return plant


def everywhere(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def test_mask_dropped_in_all_layers(verdict_on, leak):
    leak(lambda layer, out, q, k, v: everywhere(q, k, v))
    assert verdict_on()["NUM001"].status is Status.FAIL


def test_mask_dropped_in_one_layer(verdict_on, leak):
    leak(lambda layer, out, q, k, v: everywhere(q, k, v) if layer == 1 else out)
    assert verdict_on()["NUM001"].status is Status.FAIL


def test_mask_dropped_in_one_head(verdict_on, leak):
    def one_head(layer, out, q, k, v):
        return torch.cat([out[:, :1], everywhere(q, k, v)[:, 1:]], 1) if layer == 0 else out

    leak(one_head)
    assert verdict_on()["NUM001"].status is Status.FAIL


def test_one_leaked_key_in_one_layer_and_head(verdict_on, leak):
    """A sliver of one foreign token's value, for one token: below any tolerance, not below equality."""

    def one_key(layer, out, q, k, v):
        if layer != 1:
            return out
        out = out.clone()
        out[10, 0] = out[10, 0] + 1e-4 * v[1, 0]
        return out

    leak(one_key)
    checks = verdict_on()
    assert checks["NUM001"].status is Status.FAIL
    assert "1 tokens attend to another segment" in checks["NUM001"].message


def test_cu_seqlens_off_by_one(verdict_on, monkeypatch):
    sound = encoder.packed_attention

    def shifted(backend, cu_seqlens, max_seqlen, num_tokens):
        bounds = cu_seqlens.clone()
        bounds[3] += 1
        return sound(backend, bounds, max_seqlen + 1, num_tokens)

    monkeypatch.setattr(encoder, "packed_attention", shifted)
    assert verdict_on()["NUM001"].status is Status.FAIL


def test_positions_not_reset_by_the_collator(verdict_on, monkeypatch):
    sound = microbatch.Assembler.build

    def running_on(self, *arguments):
        batch = sound(self, *arguments)
        batch.position_ids.copy_(torch.arange(batch.position_ids.numel()))
        return batch

    monkeypatch.setattr(microbatch.Assembler, "build", running_on)
    checks = verdict_on()
    assert checks["NUM002"].status is Status.FAIL
    assert "do not restart" in checks["NUM002"].message


def test_positions_not_reset_by_the_model(verdict_on, monkeypatch):
    sound = NeoBERT.run_blocks

    def running_on(self, x, position_ids, attend, keeps):
        return sound(self, x, torch.arange(x.shape[-2]), attend, keeps)

    monkeypatch.setattr(NeoBERT, "run_blocks", running_on)
    assert verdict_on()["NUM002"].status is Status.FAIL


def test_causal_mask_on_in_the_encoder(verdict_on, monkeypatch):
    def causal(cu_seqlens, max_seqlen, num_tokens):
        lengths = attention.segment_lengths(cu_seqlens, max_seqlen, num_tokens)

        def attend(q, k, v):
            parts = zip(*(x.transpose(0, 1).split(lengths, dim=1) for x in (q, k, v)), strict=True)
            outs = [F.scaled_dot_product_attention(*(x[None] for x in p), is_causal=True)[0] for p in parts]
            return torch.cat([out.transpose(0, 1) for out in outs])

        return attend

    monkeypatch.setattr(attention, "segmented_sdpa", causal)
    checks = verdict_on()
    assert checks["NUM003"].status is Status.FAIL
    assert "does not attend to later ones" in checks["NUM003"].message
    assert checks["NUM002"].status is Status.FAIL  # and its numbers are wrong
    assert checks["NUM001"].status is Status.PASS  # no segment hears of another


def test_all_ones_mask_over_a_packed_batch(verdict_on, monkeypatch):
    """The encoder gets the packed run as one row, and a mask that says: all of it is text."""

    def as_row(self, inputs):
        ids, positions = inputs["input_ids"].view(1, -1), inputs["position_ids"].view(1, -1)
        out = self.model.model(ids, attention_mask=torch.ones_like(ids), position_ids=positions)
        return out.last_hidden_state.flatten(0, -2)

    monkeypatch.setattr(TokenObjective, "encode", as_row)
    monkeypatch.setattr(NeoBERT, "_check_length", lambda *_: None)  # one row of all texts is too long
    assert verdict_on()["NUM001"].status is Status.FAIL


def test_another_kernel_than_was_resolved(verdict_on, monkeypatch):
    say = attention.record_kernel
    monkeypatch.setattr(attention, "record_kernel", lambda name: say("math"))
    checks = verdict_on()
    assert checks["NUM001"].status is Status.FAIL
    assert "sdpa was resolved, but math ran" in checks["NUM001"].message


def test_a_step_that_never_repeats_is_unknown_to_isolation(verdict_on, leak):
    leak(lambda layer, out, q, k, v: out + 1e-3 * torch.randn_like(out))
    checks = verdict_on()
    assert checks["NUM001"].status is Status.UNKNOWN
    assert "cannot be distinguished from noise" in checks["NUM001"].message
    assert checks["NUM004"].status is Status.WARN


def test_a_kernel_that_stops_is_unknown(verdict_on, monkeypatch):
    def stops(*_):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(path_checks, "measure_isolation", stops)
    checks = verdict_on()
    assert {check.status for check in checks.values()} == {Status.UNKNOWN}
    assert "no kernel image is available" in checks["NUM001"].message


def test_what_was_measured_before_the_probes_stopped_counts(verdict_on, leak, monkeypatch):
    def stops(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(path_checks, "run_mutants", stops)
    leak(lambda layer, out, q, k, v: everywhere(q, k, v))
    checks = verdict_on()
    assert (checks["NUM001"].status, checks["NUM003"].status) == (Status.FAIL, Status.UNKNOWN)


BLIND = {
    "isolation": ("measure_leak", "NUM001"),
    "padding": ("measure_padding", "NUM001"),
    "parity": ("measure_parity", "NUM002"),
    "rotation": ("measure_rotation", "NUM002"),
    "direction": ("measure_direction", "NUM003"),
    "repeats": ("measure_repeats", "NUM004"),
}


@pytest.mark.parametrize("probe", BLIND)
def test_a_probe_that_always_passes_is_betrayed_by_what_it_does_not_see(
    probe, verdict_on, monkeypatch, path, setting
):
    """The probe is replaced by one that reports what a sound path gives, whatever it looks at."""
    function, code = BLIND[probe]
    measures = path_checks.probes_for_path(path, setting.reference_for(path))
    sound = {name: measure(path, setting.batch) for name, measure in measures.items()}
    monkeypatch.setattr(mutants, function, lambda *_: sound[probe])
    check = verdict_on()[code]
    assert check.status is (Status.WARN if code == "NUM004" else Status.FAIL)
    assert "missed a planted fault" in check.message
