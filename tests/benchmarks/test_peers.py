"""A peer with dense attention is found, and no mask that transformers builds reaches its attention."""

import pytest
import torch
from peers import kernels, modernbert
from peers.attention import CANDIDATES, attend, fastest_candidate
from peers.kernels import DenseAttentionError, ProfiledKernel, require_fused_attention, summarize_kernels

from neobert.config.schema import ModelConfig

LAYERS = 2
PRODUCTS = [
    ProfiledKernel("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", 5e-3, 20),
    ProfiledKernel("cutlass_80_tensorop_bf16_s16816gemm", 1e-3, 8),
]
LOSS = [
    ProfiledKernel("triton_red_fused__log_softmax_nll_loss_forward_3", 1e-4, 1),
    ProfiledKernel("triton_red_fused__log_softmax__to_copy_prepare_softmax_online_5", 1e-4, 1),
    ProfiledKernel("void cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>", 1e-4, 1),
    ProfiledKernel("softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 1, true, false>", 1e-6, 1),
]
FUSED = {
    "flash": ("void pytorch_flash::flash_fwd_kernel<...>", "pytorch_flash::flash_bwd_dq_dk_dv_loop<...>"),
    "cudnn": (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3",
    ),
    "efficient": (
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>)",
        "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<...>)",
    ),
    "triton_packed": ("attention_forward", "attention_backward_keys"),
}
SHAPE = ModelConfig(
    hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=1, intermediate_size=96,
    max_position_embeddings=32,
)  # fmt: skip


@pytest.mark.parametrize("kind", FUSED)
def test_fused_attention_passes_and_is_named(kind):
    step = [*PRODUCTS, *LOSS, *(ProfiledKernel(name, 1e-3, LAYERS) for name in FUSED[kind])]
    assert require_fused_attention(step, LAYERS) == kind
    assert summarize_kernels(step)["attention"] == {
        kind: {"share": pytest.approx(0.25, abs=0.01), "launches": 4}
    }


def test_the_parts_of_a_step_are_told_apart():
    adam = ProfiledKernel(
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>", 2e-3, 1
    )
    step = [*PRODUCTS, adam, ProfiledKernel("triton_poi_fused_gelu_mul_7", 3e-3, 4)]
    step += [
        ProfiledKernel(name, 2e-3, LAYERS) for name in FUSED["efficient"]
    ]  # cutlass is in their names, too
    parts = {"attention": 4, "products": 6, "optimizer": 2, "elementwise": 3}
    assert summarize_kernels(step)["parts_ms"] == parts


@pytest.mark.parametrize(
    "planted",
    [
        "triton_red_fused__safe_softmax_mul_4",
        "triton_per_fused__softmax_add_7",
        "softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 9, false, false>",
    ],
)
def test_a_softmax_of_attention_fails_even_next_to_flash(planted):
    fused = [ProfiledKernel(name, 1e-3, LAYERS) for name in FUSED["flash"]]
    with pytest.raises(DenseAttentionError, match="dense attention"):
        require_fused_attention([*PRODUCTS, *LOSS, *fused, ProfiledKernel(planted, 1e-3, 1)], LAYERS)


def test_products_without_an_attention_kernel_fail():
    with pytest.raises(DenseAttentionError, match="no flash, cuDNN or memory-efficient kernel"):
        require_fused_attention([*PRODUCTS, *LOSS], LAYERS)


def test_attention_that_is_fused_in_some_layers_only_fails():
    with pytest.raises(DenseAttentionError, match=r"2 launches of flash attention \(minimum 4\)"):
        require_fused_attention(
            [*PRODUCTS, *(ProfiledKernel(name, 1e-3, 1) for name in FUSED["flash"])], LAYERS
        )


@pytest.mark.parametrize(("implementation", "is_fused"), [("bench_sdpa", True), ("eager", False)])
def test_a_real_profile_is_judged(implementation, is_fused):
    peer = modernbert.build_modernbert(SHAPE, 128, 0, implementation)
    ids = torch.randint(5, 100, (2, 32))
    profiled = kernels.record_kernels(lambda: peer(input_ids=ids, labels=ids).loss.backward())
    if is_fused:
        assert require_fused_attention(profiled, LAYERS) == "flash"
    else:
        with pytest.raises(DenseAttentionError):
            require_fused_attention(profiled, LAYERS)


def test_a_span_around_kernels_is_not_one_of_them():
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(4))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(4)
    names = [each.name for each in kernels.record_kernels(optimizer.step)]
    assert names
    assert [name for name in names if name.startswith("Optimizer.step")] == []


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize(("implementation", "has_mask"), [("bench_sdpa", False), ("sdpa", True)])
def test_under_the_compiler_full_rows_have_no_mask(implementation, has_mask):
    """A collator passes a mask of ones. transformers' own function then attends with S x S values."""
    masks = []

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        attention = torch.nn.functional.scaled_dot_product_attention
        masks.extend(node.kwargs.get("attn_mask") for node in graph.graph.nodes if node.target is attention)
        return graph

    peer = modernbert.build_modernbert(SHAPE, 128, 0, implementation)
    ids = torch.randint(5, 100, (2, 32))
    torch.compile(peer, backend=keep, dynamic=False)(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert len(masks) == LAYERS
    assert all((mask is not None) == has_mask for mask in masks)


def test_a_mask_of_padding_is_kept():
    query, key, value = torch.randn(3, 2, 1, 4, 8).unbind()
    mask = torch.tensor([True, True, False, False]).expand(2, 1, 1, 4)
    out, _ = attend(torch.nn.Identity(), query, key, value, mask, scaling=1.0)
    alone, _ = attend(torch.nn.Identity(), query, key[:, :, :2], value[:, :, :2], None, scaling=1.0)
    assert out.allclose(alone, atol=1e-6)


def test_a_kernel_that_does_not_run_is_reported():
    name, found = fastest_candidate("grouped", 1, 256, 64, "cpu")
    assert name == "flash"
    assert "RuntimeError" in found["cudnn"]
    assert CANDIDATES[name].implementation == "bench_sdpa"
