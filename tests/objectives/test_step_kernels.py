"""Which kernels run a step is decided once, by what the config, the device and the packages allow."""

import importlib.util
import sys
import types

import pytest
import torch

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.families.neobert.build import backbone_from_model
from neobert.kernel_table import ATTENTION, find_attention_kernels
from neobert.model import NeoBERTLMHead, build_model_config
from neobert.objectives import step_kernels
from neobert.objectives.compile import compile_objective
from neobert.objectives.step_kernels import (
    block_attention_error,
    block_error,
    choose_module_kernels,
    resolve_step_kernels,
)
from neobert.objectives.tokens import TokenObjective
from neobert.training.loop.assembly import make_reproducible

BF16 = torch.bfloat16


def config(**sections):
    return from_dict(sections)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Pretend to have a Hopper card with every package but the ones named."""

    def pretend(*missing: str, capability: tuple[int, int] = (9, 0)) -> None:
        find_spec, ours = importlib.util.find_spec, ("triton", "quack")

        def find(name, *rest):
            return (
                None if name in missing else (find_spec("json") if name in ours else find_spec(name, *rest))
            )

        monkeypatch.setattr(importlib.util, "find_spec", find)
        monkeypatch.setitem(sys.modules, "neobert.kernels.epilogues", types.ModuleType("epilogues"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)

    return pretend


def test_a_cpu_runs_torch_and_says_why():
    kernels = resolve_step_kernels(config(), "cpu", torch.float32)
    assert (kernels.name, kernels.attention, kernels.modules) == ("torch", "sdpa", "torch")
    assert not kernels.replaces_blocks
    assert "fused needs CUDA, but the run uses the CPU" in kernels.reason


@pytest.mark.parametrize("is_packed", [True, False])
def test_on_a_gpu_cudnn_plans_no_attention_for_rows_that_vary_in_width(is_packed):
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    try:
        world = types.SimpleNamespace(device=torch.device("cuda"))
        make_reproducible(config(datacollator={"pack_sequences": is_packed}), world)
        assert torch.backends.cuda.cudnn_sdp_enabled() is is_packed
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before[0])
        torch.set_float32_matmul_precision(before[1])


def test_auto_prefers_fused_then_triton(on_a_gpu):
    on_a_gpu()
    kernels = resolve_step_kernels(config(), "cuda", BF16)
    assert (kernels.name, kernels.attention, kernels.modules) == ("fused", "triton_packed", "torch")
    on_a_gpu(capability=(8, 0))
    kernels = resolve_step_kernels(config(), "cuda", BF16)
    assert (kernels.name, kernels.attention) == ("triton", "triton_packed")
    assert "fused needs compute capability 9.x, but this GPU has 8.0" in kernels.reason


@pytest.mark.parametrize(("length", "attention"), [(1024, "triton_packed"), (4096, "flash_attn_4")])
def test_long_rows_take_flash_attention_4_where_it_is(on_a_gpu, monkeypatch, length, attention):
    on_a_gpu()
    flash4 = {"flash_attn.cute.interface", "flash_attn.cute", "flash_attn"}
    for name in flash4:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    spec = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: spec)
    long = config(dataset={"max_seq_length": length}, model={"max_position_embeddings": length})
    assert resolve_step_kernels(long, "cuda", BF16).attention == attention
    for name in flash4:
        monkeypatch.setitem(sys.modules, name, None)
    assert resolve_step_kernels(long, "cuda", BF16).attention == "triton_packed"


@pytest.mark.parametrize(
    ("capability", "runs"), [((8, 0), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)]
)
def test_flash_attention_4_is_held_to_the_cards_that_it_is_made_for(on_a_gpu, monkeypatch, capability, runs):
    on_a_gpu(capability=capability)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: types)
    monkeypatch.setattr(step_kernels, "import_kernel", lambda _: None)
    assert (block_attention_error(ATTENTION["flash_attn_4"]) is None) == runs


def test_flash_attention_4_that_does_not_import_does_not_run(on_a_gpu, monkeypatch):
    on_a_gpu()
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: types)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    error = block_attention_error(ATTENTION["flash_attn_4"])
    assert "flash_attn_4 needs flash-attn-4, which cannot be imported" in error.message


def test_padded_rows_go_through_sdpa_whatever_runs_packed_ones(on_a_gpu):
    on_a_gpu()
    padded = config(datacollator={"pack_sequences": False}, model={"attn_backend": "torch_varlen"})
    kernels = resolve_step_kernels(padded, "cuda", BF16)
    assert (kernels.attention, kernels.model_attention) == ("sdpa", "torch_varlen")
    assert "attention padded rows" in kernels.reason


@pytest.mark.parametrize("name", ["triton", "fused"])
def test_asked_for_and_impossible_is_an_error_with_a_way_out(name):
    with pytest.raises(ProjectError) as caught:
        resolve_step_kernels(config(model={"kernel_backend": name}), "cpu", torch.float32)
    assert (caught.value.code, caught.value.place) == ("ATT001", "model.kernel_backend")
    assert f"{name} needs CUDA" in caught.value.message
    assert "model.kernel_backend" in caught.value.hint


@pytest.mark.parametrize("kernel", ["flash_attn_varlen", "torch_varlen", "flex"])
def test_attention_that_cannot_run_is_refused_at_its_key(kernel):
    with pytest.raises(ProjectError) as caught:
        resolve_step_kernels(config(model={"attn_backend": kernel}), "cpu", BF16)
    assert (caught.value.code, caught.value.place) == ("ATT001", "model.attn_backend")
    members = [member.name for member in find_attention_kernels(kernel)]
    assert caught.value.message == "; ".join(
        f"{name} needs CUDA, but the run uses the CPU" for name in members
    )


def test_flex_runs_the_models_own_blocks(on_a_gpu):
    on_a_gpu()
    kernels = resolve_step_kernels(config(model={"attn_backend": "flex"}), "cuda", BF16)
    assert (kernels.attention, kernels.replaces_blocks) == ("flex", False)
    assert "triton needs model.attn_backend: auto" in kernels.reason


def test_without_triton_and_flash_attention_torchs_varlen_kernel_runs_and_says_why(on_a_gpu, monkeypatch):
    on_a_gpu("triton")
    for name in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)
    kernels = resolve_step_kernels(config(), "cuda", BF16)
    assert (kernels.replaces_blocks, kernels.attention) == (False, "torch_varlen")
    assert "triton needs triton, which is not installed" in kernels.reason
    assert "auto: supported here" in kernels.reason
    assert "flash-attn, which cannot be imported" in kernels.reason


def test_auto_falls_back_to_triton_where_an_installed_quack_does_not_import(on_a_gpu, monkeypatch):
    on_a_gpu()
    monkeypatch.delitem(sys.modules, "neobert.kernels.epilogues")  # the real one, without quack
    kernels = resolve_step_kernels(config(), "cuda", BF16)
    assert kernels.name == "triton"
    assert "fused needs quack-kernels, which cannot be imported (No module named" in kernels.reason
    with pytest.raises(ProjectError, match=r"(?s)cannot be imported .*set model.kernel_backend to auto"):
        resolve_step_kernels(config(model={"kernel_backend": "fused"}), "cuda", BF16)


def test_a_missing_package_is_said_with_its_install_line(on_a_gpu):
    on_a_gpu("quack")
    with pytest.raises(ProjectError) as caught:
        resolve_step_kernels(config(model={"kernel_backend": "fused"}), "cuda", BF16)
    assert "quack-kernels" in caught.value.message
    assert "pip install 'quack-kernels>=0.6.5' 'flash-attn-4>=4.0.0b1'" in caught.value.hint


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "attn_backend", "sdpa"),
        ("datacollator", "pack_sequences", False),
        ("trainer", "masked_logits_only_loss", False),
        ("trainer", "gradient_checkpointing", True),
        ("model", "rope", False),
        ("model", "rms_norm", False),
        ("model", "hidden_act", "gelu"),
    ],
)
def test_what_the_kernels_do_not_do_is_named(on_a_gpu, section, key, value):
    on_a_gpu()
    requested = config(**{section: {key: value}})
    for name in ("fused", "triton"):
        assert f"{name} needs {section}.{key}:" in block_error(name, requested, "cuda", BF16).message
    assert not resolve_step_kernels(requested, "cuda", BF16).replaces_blocks


def test_other_heads_and_other_types_are_named(on_a_gpu):
    on_a_gpu()
    wide = config(model={"num_attention_heads": 8})
    assert (
        block_error("fused", wide, "cuda", BF16).message
        == "fused needs a head size of 64, but the model's is 96"
    )
    assert (
        "needs bfloat16, but the run computes in float32"
        in block_error("triton", config(), "cuda", torch.float32).message
    )
    assert block_error("triton", config(), "cuda", BF16) is None
    narrow = config(model={"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 100})
    assert "widths divisible by 64, not 72" in block_error("fused", narrow, "cuda", BF16).message


def test_compiling_packed_sdpa_is_refused_before_the_first_step():
    tiny = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 96}
    requested = config(model=tiny, trainer={"torch_compile": True})
    kernels = resolve_step_kernels(requested, "cpu", torch.float32)
    model = NeoBERTLMHead(
        build_model_config(requested.model, 128, 0, kernels.model_attention, kernels.modules)
    )
    with pytest.raises(ProjectError) as caught:
        compile_objective(requested, TokenObjective(backbone_from_model(model, kernels), True))
    assert (caught.value.code, caught.value.place) == ("ATT001", "trainer.torch_compile")
    assert "packed sdpa runs once per document" in caught.value.message


def test_liger_on_a_cpu_is_an_error_and_auto_is_torch():
    with pytest.raises(ProjectError, match="needs CUDA") as caught:
        choose_module_kernels("liger", "cpu", BF16, is_compiled=False)
    assert (caught.value.code, caught.value.place) == ("ATT001", "model.kernel_backend")
    auto = choose_module_kernels("auto", "cpu", BF16, is_compiled=False)
    assert auto.name == "torch"
    assert "needs CUDA" in auto.reason
    assert choose_module_kernels("torch", "cuda", BF16, is_compiled=False).name == "torch"


def test_auto_leaves_liger_out_of_a_compiled_step():
    compiled = choose_module_kernels("auto", "cuda", BF16, is_compiled=True)
    assert compiled.name == "torch"
    assert "torch.compile" in compiled.reason


def test_missing_liger_on_cuda(monkeypatch):
    for name in ("liger_kernel", "liger_kernel.ops.rms_norm", "liger_kernel.ops.swiglu"):
        monkeypatch.setitem(sys.modules, name, None)
    assert choose_module_kernels("auto", "cuda", BF16, is_compiled=False).name == "torch"
    with pytest.raises(ProjectError) as caught:
        choose_module_kernels("liger", "cuda", BF16, is_compiled=False)
    assert "pip install 'liger-kernel>=0.8'" in caught.value.hint
