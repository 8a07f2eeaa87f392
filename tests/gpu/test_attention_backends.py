"""The packed attention kernels of a CUDA device: types, graphs, records. Numerics: `test_validate_gpu`."""

import importlib.util

import pytest
import torch
from torch import Tensor

from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.model.attention import record_kernels
from neobert.model.backends import BackendError, choose_backend, current_environment
from neobert.objectives.step_kernels import choose_module_kernels

# Of what FlashAttention 4 is built on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 145, 300)
# A module that no other release has, for 2 and 4 share the folder flash_attn; and the cards each is made for.
FLASH = {
    "flash_attn_4": ("flash_attn.cute", (9, 10)),
    "flash_attn_3": ("flash_attn_interface", (9,)),
    "flash_attn_2": ("flash_attn.flash_attn_interface", (8, 9, 10, 12)),
}


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def flash_runs(name: str) -> bool:
    module, majors = FLASH[name]
    return is_installed(module) and torch.cuda.get_device_capability()[0] in majors


def _flash(name: str):
    return pytest.param(name, marks=pytest.mark.skipif(f"not flash_runs({name!r})", reason=f"needs {name}"))


KERNELS = ["torch_varlen", *map(_flash, FLASH)]


def make_model(**changes) -> NeoBERTLMHead:
    """Two blocks with heads of 64, at a scale where a leak shows."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 512,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 192,
        "embedding_init_range": 1.0,
        "decoder_init_range": 0.15,
        "attn_backend": "sdpa",
    }
    return NeoBERTLMHead(NeoBERTConfig(**{**shape, **changes}))


def make_run(slots: int = 32) -> dict[str, Tensor | int]:
    generator = torch.Generator().manual_seed(1)
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    bounds = torch.cat([bounds, bounds[-1].expand(slots - len(LENGTHS))])
    return {
        "input_ids": torch.randint(5, 512, (sum(LENGTHS),), generator=generator),
        "position_ids": torch.cat([torch.arange(n) for n in LENGTHS]),
        "cu_seqlens": bounds.to(torch.int32),
        "max_seqlen": max(LENGTHS),
    }


def on_cuda(run: dict[str, Tensor | int]) -> dict[str, Tensor | int]:
    return {name: x.cuda() if isinstance(x, Tensor) else x for name, x in run.items()}


def bf16_model(backend: str, **changes) -> NeoBERTLMHead:
    return make_model(attn_backend=backend, **changes).to("cuda", torch.bfloat16).eval()


def _logits_and_gradients(model: NeoBERTLMHead, run: dict[str, Tensor | int]) -> dict[str, Tensor]:
    logits = model(**run).logits
    weighting = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    (logits.float() * weighting.to(logits.device)).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {name: x.detach().float().cpu() for name, x in {"logits": logits, **gradients}.items()}


def _errors(found: dict[str, Tensor], golden: dict[str, Tensor]) -> dict[str, float]:
    return {name: float((found[name] - x).norm() / x.norm()) for name, x in golden.items()}


@pytest.mark.parametrize("backend", [*KERNELS, "triton_packed"])
def test_empty_slots_change_nothing(backend):
    model = bf16_model(backend)
    few, many = (model.model(**on_cuda(make_run(slots))).last_hidden_state for slots in (10, 200))
    assert torch.equal(few, many)


@pytest.mark.parametrize("backend", [*KERNELS, "triton_packed"])
def test_autocast_over_fp32_weights(backend):
    model, run = make_model(attn_backend=backend).cuda(), on_cuda(make_run())
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**run, labels=run["input_ids"]).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.filterwarnings("default")  # the compiler's advice is no fault of the model
@pytest.mark.parametrize("backend", [*KERNELS, "triton_packed", "flex"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_whole_graph_compiles(backend, recompute):
    torch._dynamo.reset()
    model, run = bf16_model(backend).train(), on_cuda(make_run())
    wanted = _logits_and_gradients(model, run)
    model.zero_grad()
    if recompute:
        model.enable_gradient_checkpointing()
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    logits = compiled(**run).logits
    weighting = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).cuda()
    (logits.float() * weighting).sum().backward()
    found = {"logits": logits, **{name: p.grad for name, p in model.named_parameters()}}
    for name, error in _errors({name: x.detach().float().cpu() for name, x in found.items()}, wanted).items():
        assert error < 0.03, (name, error)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("backend", [*KERNELS, "triton_packed", "flex"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_block_tells_the_kernel_that_it_ran(backend, is_compiled):
    torch._dynamo.reset()
    model, run, ran = bf16_model(backend).train(), on_cuda(make_run()), {}
    forward = torch.compile(model, fullgraph=True, dynamic=False) if is_compiled else model
    with record_kernels(ran):
        forward(**run).logits.sum().backward()
    assert ran == {0: backend, 1: backend}


@pytest.mark.filterwarnings("default")
def test_flex_compiles_once_for_other_documents_in_an_eager_model():
    torch._dynamo.reset()
    model, run = bf16_model("flex").train(), on_cuda(make_run())
    model(**run).logits.sum().backward()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    bounds = run["cu_seqlens"].clone()
    bounds[6] += 3
    model(**{**run, "cu_seqlens": bounds}).logits.sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.filterwarnings("default")
def test_flex_runs_in_fp32_too():
    run = make_run()
    wanted = make_model()(**run).logits.detach()
    found = make_model(attn_backend="flex").cuda()(**on_cuda(run)).logits.detach().cpu()
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("recompute", [1, 2])
def test_recomputation_gives_the_same_output(recompute):
    model, run = bf16_model("torch_varlen").train(), on_cuda(make_run())
    wanted = _logits_and_gradients(model, run)
    model.zero_grad()
    model.enable_gradient_checkpointing(recompute)
    found = _logits_and_gradients(model, run)
    assert torch.equal(found["logits"], wanted["logits"])
    assert max(_errors(found, wanted).values()) < 1e-2


def here(dtype: torch.dtype = torch.bfloat16):
    return current_environment("cuda", dtype, 64)


def test_auto_resolves_to_a_kernel():
    assert choose_backend("auto", here()).name in [*FLASH, "torch_varlen"]
    with pytest.raises(BackendError, match="float32"):
        choose_backend("torch_varlen", here(torch.float32))


def test_flash_attention_is_the_newest_that_runs_or_says_what_to_install():
    there = [name for name in FLASH if flash_runs(name)]
    if there:
        assert choose_backend("flash_attn_varlen", here()).name == there[0]
        return
    with pytest.raises(BackendError, match="pip install"):
        choose_backend("flash_attn_varlen", here())


@pytest.mark.skipif(not is_installed("liger_kernel"), reason="needs liger-kernel")
def test_liger_computes_what_torch_computes():
    assert choose_module_kernels("auto", "cuda", torch.bfloat16, is_compiled=False).name == "liger"
    run = make_run()
    golden = _logits_and_gradients(make_model(), run)
    allowed = _errors(_logits_and_gradients(bf16_model("torch_varlen"), on_cuda(run)), golden)
    liger = bf16_model("torch_varlen", kernel_backend="liger")
    for name, error in _errors(_logits_and_gradients(liger, on_cuda(run)), golden).items():
        assert error <= 2 * allowed[name], (name, error, allowed[name])
