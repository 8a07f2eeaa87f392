"""The planner and the resolver read one table: with every package installed they name the same kernels."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.kernel_table import ATTENTION_CHOICES, BLOCK_CHOICES, OWN_KERNELS, find_attention_kernels
from neobert.plan.hardware import CARDS, assumptions_for
from neobert.plan.kernels import plan_kernels

torch = pytest.importorskip("torch")

from neobert.model import backends  # noqa: E402  only where torch is
from neobert.model.backends import BackendError  # noqa: E402
from neobert.objectives import step_kernels  # noqa: E402

CHOICES = st.fixed_dictionaries(
    {
        "attn_backend": st.sampled_from(ATTENTION_CHOICES),
        "kernel_backend": st.sampled_from([name for name in BLOCK_CHOICES if name != "liger"]),
        "num_attention_heads": st.sampled_from([3, 8, 12, 64]),
        "intermediate_size": st.sampled_from([3072, 1000]),
        "hidden_act": st.sampled_from(["swiglu", "swiglu", "gelu"]),
    }
)


@pytest.fixture(scope="module")
def on_a_card():
    """Pretend to have a card, and every package but liger."""
    with pytest.MonkeyPatch.context() as patch:

        def no_liger(*_):
            raise BackendError("liger is not installed", "")

        patch.setattr(step_kernels, "_is_missing", lambda package: False)
        patch.setattr(step_kernels, "import_kernel", lambda kernel: None)
        patch.setattr(step_kernels, "check_liger", no_liger)
        patch.setattr(backends, "import_kernel", lambda kernel: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        yield lambda card: patch.setattr(torch.cuda, "get_device_capability", lambda: card.capability)


@settings(max_examples=300, deadline=None)
@given(
    CHOICES,
    st.sampled_from([None, *CARDS]),
    st.sampled_from(["bf16", "fp32"]),
    st.sampled_from([128, 1024, 4096]),
    st.booleans(),
)
def test_plan_and_resolver_agree(on_a_card, model, card, precision, length, is_packed):
    config = from_dict(
        {
            "model": model,
            "trainer": {"mixed_precision": precision},
            "dataset": {"max_seq_length": length},
            "datacollator": {"pack_sequences": is_packed},
        }
    )
    if card is not None:
        on_a_card(card)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    try:
        resolved = step_kernels.resolve_step_kernels(config, "cuda" if card else "cpu", dtype)
    except ProjectError:
        return
    plan = plan_kernels(config, assumptions_for(card.name if card else None, None, 0.4), 1e9)
    kernels, attention = plan["kernels"].value, plan["attention"].value
    assert kernels == resolved.name
    if kernels in OWN_KERNELS or not is_packed or resolved.attention == "sdpa":
        assert attention == resolved.attention
    else:
        # A value may stand for several kernels; without FlashAttention auto is torch's own.
        named = [kernel.name for kernel in find_attention_kernels(model["attn_backend"], (), length)]
        assert resolved.attention in named
        assert attention in (*named, model["attn_backend"])
        assert (attention == "triton_packed") == (resolved.attention == "triton_packed")
