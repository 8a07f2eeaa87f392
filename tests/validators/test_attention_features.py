"""Rules and plan refuse a kernel that does not compute the model's attention, in the table's words."""

from dataclasses import replace

import pytest

from neobert.families.neobert import spec as family
from neobert.plan.pace import orthogonalization_flops
from tests.validators.judging import found, run_of, with_facts
from validators.planning import plan_run


@pytest.fixture
def attention(monkeypatch):
    """Give NeoBERT another attention."""
    real = family.attention_spec

    def use(**changes) -> None:
        monkeypatch.setattr(family, "attention_spec", lambda model: replace(real(model), **changes))

    return use


@pytest.mark.parametrize("backend", ["torch_varlen", "flash_attn_varlen"])
def test_a_named_kernel_that_lacks_a_feature_is_refused(attention, backend):
    run = run_of(f"model.attn_backend={backend}")
    assert found("ATT003", run) == []
    attention(direction="causal", softcap=30.0)
    refused = found("ATT003", run)
    messages = ["torch_varlen does not compute a soft cap on scores, which the model needs"]
    is_refused = backend == "torch_varlen"
    assert [each.message for each in refused] == messages * is_refused
    assert [each.hint for each in refused] == ["set model.attn_backend to auto"] * is_refused


def test_the_plan_takes_kernels_that_compute_the_attention(attention):
    run = run_of("model.kernel_backend=auto", profile="h200-prod")
    assert plan_run(run).kernels.value == "fused"
    attention(direction="causal")
    plan = plan_run(run)
    assert (plan.kernels.value, plan.attention.value) == ("torch", "torch_varlen")
    assert "fused does not compute causal attention" in plan.kernels.reason
    attention(direction="causal", softcap=30.0)
    capped = plan_run(run).attention
    assert capped.value == "flex"
    assert capped.reason.startswith(
        "auto: PyTorch's kernel; torch_varlen does not compute a soft cap on scores"
    )
    assert capped.reason.endswith("; flash_attn_3 or flash_attn_2 if installed")


def test_grouped_heads_count_their_own_weights_and_products(attention):
    run = run_of("optimizer.name=muonclip", "optimizer.muon_split=heads")
    whole, hidden = plan_run(run), plan_run(run).shape.hidden_size
    attention(kv_heads=4)
    grouped = plan_run(run)
    saved = 2 * hidden * 64 * 8 * whole.shape.num_layers  # k and v of 8 heads that are no longer there
    assert whole.shape.parameters.linear - grouped.shape.parameters.linear == saved
    assert orthogonalization_flops(run.config, grouped.shape) < orthogonalization_flops(
        run.config, whole.shape
    )
    assert grouped.shape.attention_flops([64]) == whole.shape.attention_flops([64])


@pytest.mark.parametrize(
    ("code", "override", "message", "hint"),
    [
        ("ATT001", (), "not installed", "pip install 'flash-linear-attention>=0.6,<0.7'"),
        (
            *("ATT003", ("trainer.mixed_precision=no",), "nsa needs bfloat16"),
            "set trainer.mixed_precision to bf16, or train on a CPU",
        ),
    ],
)
def test_sparse_attention_that_cannot_run_names_a_key_that_its_model_has(code, override, message, hint):
    facts = with_facts("software", packages={"torch": "2.11", "triton": "3.6"})
    (one,) = found(code, run_of(*override, profile="nsa-smoke"), facts)
    assert (one.path, one.hint) == ("model.type", hint)
    assert message in one.message
    assert "reference" not in one.message
