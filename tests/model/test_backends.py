"""Which attention kernel is legal where, and what is said where it is not."""

import sys
import types

import pytest
import torch

from neobert.model import backends
from neobert.model.backends import BackendError, choose_backend, import_kernel
from neobert.model.kernel_table import ATTENTION, AttentionKernel, Environment, Gpu, find_attention_kernels

BF16, FP32 = "bfloat16", "float32"
FLASH = [kernel.name for kernel in find_attention_kernels("flash_attn_varlen")]
HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)
CPU = Environment("cpu", BF16)


def card(capability=HOPPER, head_size=64, dtype=BF16, features=()):
    return Environment("cuda", dtype, head_size, (Gpu("this GPU", capability),), features)


@pytest.fixture
def install(monkeypatch):
    """Pretend that these FlashAttention releases are installed, and no other."""

    def pretend(*releases: int) -> None:
        def package(name, **attributes):
            module = types.ModuleType(name)
            vars(module).update(attributes)
            return module

        two = {"flash_attn_varlen_func": lambda *_: None} if 2 in releases else {}
        cute = package("flash_attn.cute", __path__=[]) if 4 in releases else None
        interface = package("flash_attn.cute.interface") if 4 in releases else None
        three = package("flash_attn_interface", flash_attn_varlen_func=lambda *_: None)
        monkeypatch.setitem(
            sys.modules,
            "flash_attn",
            package("flash_attn", __path__=[], **two) if {2, 4} & {*releases} else None,
        )
        monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
        monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", interface)
        monkeypatch.setitem(sys.modules, "flash_attn_interface", three if 3 in releases else None)

    return pretend


def test_auto_on_a_cpu_is_sdpa_and_says_why():
    backend = choose_backend("auto", Environment("cpu", FP32))
    assert backend.name == "sdpa"
    assert "torch_varlen needs CUDA, but the run uses the CPU" in backend.reason


@pytest.mark.parametrize("name", ["flash_attn_varlen", "torch_varlen"])
def test_a_named_kernel_fails_in_fp32(name, install):
    install(2)
    with pytest.raises(BackendError, match="needs bfloat16 or float16, but the run computes in float32"):
        choose_backend(name, card(dtype=FP32))


def test_a_missing_flash_attention_names_every_release_and_an_install_line(install):
    install()
    with pytest.raises(BackendError, match=r"flash-attn-4, .*flash-attn-3, .*flash-attn, which") as caught:
        choose_backend("flash_attn_varlen", card())
    assert "pip install --no-build-isolation 'flash-attn>=2.8'" in caught.value.hint


@pytest.mark.parametrize("requested", ["auto", "flash_attn_varlen"])
@pytest.mark.parametrize(
    ("releases", "place", "taken"),
    [
        ((2, 3, 4), card(), "flash_attn_4"),
        ((2, 3), card(), "flash_attn_3"),
        ((2,), card(), "flash_attn_2"),
        ((2, 3, 4), card(AMPERE), "flash_attn_2"),
        ((2, 3, 4), card((10, 0)), "flash_attn_4"),
        ((2, 3, 4), card(head_size=192), "flash_attn_3"),
        ((2, 4), card(head_size=192), "flash_attn_2"),
    ],
)
def test_the_newest_flash_attention_that_is_there_and_legal_is_taken(
    install, requested, releases, place, taken
):
    install(*releases)
    assert choose_backend(requested, place).name == taken


@pytest.mark.parametrize(
    ("place", "output"),
    [
        (card(head_size=60), "that is a multiple of 8 and at most 256, but the model's is 60"),
        (card(head_size=264), "model's is 264"),
        (card(TURING), "flash_attn_2 needs compute capability 8.x to 12.x, but this GPU has 7.5"),
    ],
)
def test_what_no_flash_attention_takes_is_said(install, place, output):
    install(2, 3, 4)
    with pytest.raises(BackendError, match=output):
        choose_backend("flash_attn_varlen", place)
    assert output in choose_backend("auto", place).reason


def test_auto_on_cuda_in_fp32_is_sdpa():
    assert choose_backend("auto", card(dtype=FP32)).name == "sdpa"


@pytest.mark.parametrize(
    ("releases", "features", "taken"),
    [
        ((), ("causal attention", "a soft cap on scores"), "flex"),
        ((4,), ("causal attention", "sliding windows", "grouped heads", "a soft cap on scores"), "flex"),
        ((2,), ("causal attention", "a soft cap on scores"), "flash_attn_2"),
        ((), ("causal attention", "sliding windows", "grouped heads", "a scale of its own"), "torch_varlen"),
    ],
)
def test_auto_takes_flex_for_a_soft_cap_where_no_flash_attention_is(install, releases, features, taken):
    install(*releases)
    assert choose_backend("auto", card(features=features)).name == taken
    assert choose_backend("auto", Environment("cpu", BF16, features=features)).name == "sdpa"


def test_flex_is_taken_where_it_is_named_in_any_type():
    assert choose_backend("flex", card(dtype=FP32)).name == "flex"


def test_a_varlen_attn_of_another_signature_is_not_called(monkeypatch):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value, lengths: query)
    with pytest.raises(BackendError, match="takes the arguments query, key, value, lengths"):
        import_kernel(ATTENTION["torch_varlen"])


@pytest.mark.parametrize(
    ("error", "reason"), [(RuntimeError("no CUDA\nat 3"), "no CUDA"), (AssertionError(), "AssertionError")]
)
def test_the_import_of_a_package_may_raise_errors_of_any_type(monkeypatch, error, reason):
    def fail(*_):
        raise error

    monkeypatch.setattr(backends, "import_module", fail)
    with pytest.raises(BackendError, match=rf"flash-attn, which cannot be imported \({reason}\)"):
        import_kernel(ATTENTION["flash_attn_2"])


def test_a_kernel_of_this_project_without_its_module_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"neobert\.model\.by_formula"):
        import_kernel(AttentionKernel(name="by_formula", loader=".by_formula:attend_in_documents"))


def test_sdpa_is_taken_wherever_it_is_named():
    assert choose_backend("sdpa", card()).name == "sdpa"


def test_unknown_names_are_refused():
    with pytest.raises(BackendError, match="'flash'") as caught:
        choose_backend("flash", card())
    assert "flash_attn_varlen" in caught.value.hint


@pytest.mark.parametrize("name", ["flash_attn_varlen", "flash_attn_2", "torch_varlen"])
def test_a_model_that_names_a_kernel_does_not_swap_it(make_model, pack, name, install):
    install(2)
    with pytest.raises(ValueError, match="needs CUDA"):
        make_model(attn_backend=name)(**pack((5, 4)).inputs())


def test_a_model_on_auto_runs_anywhere(make_model, pack):
    model, run = make_model(), pack((5, 4))
    wanted = model(**run.inputs()).logits
    model.config.attn_backend = model.model.config.attn_backend = "auto"
    assert torch.equal(model(**run.inputs()).logits, wanted)


@pytest.mark.parametrize(
    ("features", "taken", "reason"),
    [
        ((), "flash_attn_4", "supported here"),
        (("causal attention", "grouped heads"), "flash_attn_4", "supported here"),
        (("a soft cap on scores",), "flash_attn_3", "flash_attn_4 does not compute a soft cap"),
    ],
)
def test_a_kernel_that_lacks_what_the_attention_needs_is_not_taken(install, features, taken, reason):
    install(2, 3, 4)
    backend = choose_backend("auto", card()._replace(features=features))
    assert backend.name == taken
    assert reason in backend.reason


def test_a_named_kernel_that_lacks_what_the_attention_needs_is_an_error(install):
    install(4)
    with pytest.raises(BackendError, match="torch_varlen does not compute a soft cap on scores, which"):
        choose_backend("torch_varlen", card()._replace(features=("a soft cap on scores",)))


def test_auto_is_an_error_where_no_kernel_computes_the_attention():
    with pytest.raises(BackendError, match="sdpa does not compute attention sinks"):
        choose_backend("auto", Environment("cpu", FP32, features=("attention sinks",)))
