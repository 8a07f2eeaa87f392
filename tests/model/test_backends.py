"""Which kernel runs, and what is said where it cannot."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from neobert.errors import ProjectError
from neobert.model import resolve_attention_backend, resolve_kernel_backend
from neobert.model.backends import BackendError, load_varlen_kernel

BF16 = torch.bfloat16


@pytest.fixture
def without_flash_attn(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)


@pytest.fixture
def with_flash_attn(monkeypatch):
    module = types.ModuleType("flash_attn")
    module.flash_attn_varlen_func = lambda *_: None
    monkeypatch.setitem(sys.modules, "flash_attn", module)


def test_auto_on_a_cpu_is_sdpa_and_says_why():
    backend = resolve_attention_backend("auto", "cpu", torch.float32)
    assert backend.name == "sdpa"
    assert "needs a CUDA device" in backend.reason


@pytest.mark.parametrize("name", ["flash_attn_varlen", "torch_varlen"])
def test_a_named_kernel_fails_on_a_cpu(name):
    with pytest.raises(ProjectError) as caught:
        resolve_attention_backend(name, "cpu", BF16)
    assert (caught.value.code, caught.value.place) == ("ATT001", "model.attn_backend")
    assert "needs a CUDA device, and this is cpu" in caught.value.message


@pytest.mark.parametrize("name", ["flash_attn_varlen", "torch_varlen"])
def test_a_named_kernel_fails_in_fp32(name):
    with pytest.raises(ProjectError, match="bf16 or fp16, and this is float32"):
        resolve_attention_backend(name, "cuda", torch.float32)


def test_a_missing_flash_attn_names_the_install_line(without_flash_attn):
    with pytest.raises(ProjectError, match="does not import") as caught:
        resolve_attention_backend("flash_attn_varlen", "cuda", BF16)
    assert "pip install 'neobert-launch[flash]'" in caught.value.hint


def test_auto_on_cuda_prefers_flash_attn(with_flash_attn):
    assert resolve_attention_backend("auto", "cuda", BF16).name == "flash_attn_varlen"


def test_auto_on_cuda_without_it_takes_torchs_own(without_flash_attn):
    backend = resolve_attention_backend("auto", "cuda", BF16)
    assert backend.name == "torch_varlen"
    assert "flash-attn, which does not import" in backend.reason


def test_auto_on_cuda_in_fp32_is_sdpa():
    assert resolve_attention_backend("auto", "cuda", torch.float32).name == "sdpa"


def test_a_varlen_attn_of_another_signature_is_not_called(monkeypatch):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value, lengths: query)
    with pytest.raises(BackendError, match="arguments that this version does not know"):
        load_varlen_kernel("torch_varlen")


def test_sdpa_is_taken_wherever_it_is_named():
    assert resolve_attention_backend("sdpa", "cuda", BF16).name == "sdpa"


def test_unknown_names_are_refused():
    with pytest.raises(ProjectError, match="'flash'"):
        resolve_attention_backend("flash", "cuda", BF16)


@pytest.mark.parametrize("name", ["flash_attn_varlen", "torch_varlen"])
def test_a_model_that_names_a_kernel_does_not_swap_it(make_model, pack, name, with_flash_attn):
    with pytest.raises(ValueError, match="needs a CUDA device"):
        make_model(attn_backend=name)(**pack((5, 4)).inputs())


def test_a_model_on_auto_runs_anywhere(make_model, pack):
    model, run = make_model(), pack((5, 4))
    wanted = model(**run.inputs()).logits
    model.config.attn_backend = model.model.config.attn_backend = "auto"
    assert torch.equal(model(**run.inputs()).logits, wanted)


def test_liger_on_a_cpu_is_an_error_and_auto_is_torch():
    with pytest.raises(ProjectError) as caught:
        resolve_kernel_backend("liger", "cpu")
    assert caught.value.place == "model.kernel_backend"
    assert "needs a CUDA device" in caught.value.message
    assert "needs a CUDA device" in resolve_kernel_backend("auto", "cpu").reason
    assert resolve_kernel_backend("auto", "cpu").name == "torch"
    assert resolve_kernel_backend("torch", "cuda").name == "torch"


def test_auto_leaves_liger_out_of_a_compiled_step():
    assert resolve_kernel_backend("auto", "cuda", is_compiled=True).name == "torch"
    assert "torch.compile" in resolve_kernel_backend("auto", "cuda", is_compiled=True).reason


def test_missing_liger_on_cuda(monkeypatch):
    for name in ("liger_kernel", "liger_kernel.ops.rms_norm", "liger_kernel.ops.swiglu"):
        monkeypatch.setitem(sys.modules, name, None)
    assert resolve_kernel_backend("auto", "cuda").name == "torch"
    with pytest.raises(ProjectError) as caught:
        resolve_kernel_backend("liger", "cuda")
    assert "pip install 'neobert-launch[liger]'" in caught.value.hint
