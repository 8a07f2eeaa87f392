"""Libraries of low precision that no machine of this project runs: their calls, filters, order and state."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from neobert import parallel
from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.families.backbone import build_backbone
from neobert.families.table import model_shape
from neobert.parallel import World
from neobert.precision.libraries import LIBRARIES, enabled_conversion
from neobert.precision.library import list_linear_layers
from neobert.precision.recipe import FP32
from neobert.precision.table import run_recipe
from neobert.precision.transformer_engine import convert as transformer_engine
from neobert.probes.attention_suite import SpecialTokenIds
from neobert.rehearsal import turns
from neobert.training.loop import assembly

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
NVFP4 = "torchao.prototype.moe_training.nvfp4_training.nvfp4_linear"
OURS = "neobert.precision.torchao.nvfp4"


def install(monkeypatch, name, **members):
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def converted(section, **keys):
    """Return a small model that a library has converted, its linear layers before, and its names of state."""
    config = from_dict({"model": SMALL, section: {"enable": True} | keys, "seed": 5})
    backbone = build_backbone(config, SpecialTokenIds(), 128, World(FP32), "AutoModelForMaskedLM", {})
    before = linears(backbone, nn.Linear)
    names = backbone.model.state_dict().keys()
    random = torch.get_rng_state()
    run_recipe(config).convert(backbone)
    assert torch.equal(torch.get_rng_state(), random), "later random numbers would differ from those in bf16"
    expected = {
        (each.block, each.name)
        for each in enabled_conversion(config).select_layers([*list_linear_layers(model_shape(config, 128))])
    }
    made = {key: backbone.blocks[key[0]].get_submodule(key[1]) for key in expected}
    assert all(module is not before[key] for key, module in made.items())
    assert all(module.weight is before[key].weight for key, module in made.items())
    assert backbone.model.state_dict().keys() == names
    others = {key for key in before if key not in expected}
    assert all(backbone.blocks[key[0]].get_submodule(key[1]) is before[key] for key in others)
    assert len(expected) == 6, "of 8 layers, without the first and the last one"
    return list(made.values())


def linears(backbone, kind):
    return {
        (number, name): module
        for number, block in enumerate(backbone.blocks)
        for name, module in block.named_modules()
        if isinstance(module, kind)
    }


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_is_a_folder_and_a_row(library):
    values = get_args(get_type_hints(library.section, include_extras=True)["recipe"])
    assert set(values) == set(library.recipes)
    assert find_spec(f"neobert.precision.{library.name}.convert")
    assert all(hasattr(library.section, key) for row in library.recipes.values() for key in row.reads)


@pytest.mark.parametrize("name", ["transformer_engine", "quartet2"])
def test_a_library_that_is_not_installed_is_an_error_with_its_command(name, monkeypatch):
    for module in ("transformer_engine", "quartet2.linear"):
        monkeypatch.setitem(sys.modules, module, None)
    transformer_engine.linear_class.cache_clear()
    with pytest.raises(ProjectError, match=f"{name} is enabled, but the package") as caught:
        converted(name)
    assert caught.value.hint == LIBRARIES[name].install


@dataclass
class FakeRecipe:
    """Keys of a recipe of Transformer Engine."""

    kind: str
    keys: dict


class FakeLinear(nn.Module):
    """Signature and state of `transformer_engine.pytorch.Linear`; it computes only within its autocast."""

    active = None

    def __init__(self, in_features, out_features, *, bias=True, params_dtype=None, device="cuda"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=params_dtype, device=device))
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=params_dtype, device=device)) if bias else None
        )

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        raise AssertionError("it unpickles")

    def forward(self, values):
        assert FakeLinear.active is self.recipe
        return nn.functional.linear(values, self.weight.to(values.dtype))


class FakeAutocast:
    def __init__(self, enabled=True, calibrating=False, recipe=None, amax_reduction_group=None):
        assert enabled
        self.recipe = recipe

    def __enter__(self):
        FakeLinear.active = self.recipe

    def __exit__(self, *_):
        FakeLinear.active = None


@pytest.fixture
def fake_engine(monkeypatch):
    """Transformer Engine's modules, with the names of version 2.20."""
    kinds = ("Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
    made = {kind: lambda kind=kind, **keys: FakeRecipe(kind, keys) for kind in kinds}
    recipe = SimpleNamespace(Format={"HYBRID": "hybrid", "E4M3": "e4m3"}, **made)
    engine = install(monkeypatch, "transformer_engine.pytorch", Linear=FakeLinear, autocast=FakeAutocast)
    install(monkeypatch, "transformer_engine", pytorch=engine)
    install(monkeypatch, "transformer_engine.common", recipe=recipe)
    transformer_engine.linear_class.cache_clear()
    yield
    transformer_engine.linear_class.cache_clear()


@pytest.mark.parametrize(
    ("keys", "kind", "passed"),
    [
        ({}, "Float8CurrentScaling", {}),
        ({"recipe": "fp8_block", "fp8_format": "HYBRID"}, "Float8BlockScaling", {"fp8_format": "hybrid"}),
        ({"recipe": "mxfp8", "fp8_format": "E4M3"}, "MXFP8BlockScaling", {"fp8_format": "e4m3"}),
        (
            {"recipe": "nvfp4", "disable_rht": False},
            "NVFP4BlockScaling",
            {"disable_rht": False, "disable_stochastic_rounding": True, "disable_2d_quantization": True},
        ),
    ],
)
@pytest.mark.usefixtures("fake_engine")
def test_layers_of_transformer_engine_compute_in_the_recipe(keys, kind, passed):
    layers = converted("transformer_engine", **keys)
    assert {type(each) for each in layers} == {transformer_engine.linear_class()}, "one graph for all"
    assert [each.recipe for each in layers] == [FakeRecipe(kind, passed)] * 6
    values = torch.randn(32, layers[0].weight.shape[1])
    assert torch.equal(layers[0](values), values @ layers[0].weight.T)
    assert FakeLinear.active is None


def test_a_comparison_with_bf16_times_whole_steps_of_one_rank(monkeypatch, tmp_path):
    """Steps of a warm-up have fewer microbatches, or shorter documents, than those of the run."""
    built = []

    def note(config, *_):
        built.append(config)
        raise InterruptedError

    monkeypatch.setattr(assembly, "assemble", note)
    monkeypatch.setattr(assembly, "make_reproducible", lambda *_: None)
    monkeypatch.setattr(parallel, "use_all_cores", lambda: None)
    config = from_dict(
        {
            "model": SMALL,
            "distributed": {"nproc_per_node": 2},
            "trainer": {"batch_size_warmup_steps": 50, "gradient_accumulation_steps": 4}
            | {"sequence_length_warmup_percent": 5, "mixed_precision": "no"},
        }
    )
    with pytest.raises(InterruptedError):
        next(turns.train_in_turns(config, tmp_path, "recipe"))
    (trained,) = built
    assert trained.distributed.nproc_per_node == 1
    assert trained.trainer.batch_size_warmup_steps == 0
    assert trained.trainer.sequence_length_warmup_percent is None
    assert trained.trainer.sequence_length_warmup_steps == 1, "the shape keeps room for the pieces"


class FakeQuartet(nn.Linear):
    """Signature and demands of `quartet2.linear.Quartet_II_linear`."""

    def __init__(self, *args, four_over_six=True, **kwargs):
        super().__init__(*args, **kwargs)
        assert self.bias is None, "it would not add one"
        self.four_over_six = four_over_six
        self.register_buffer("had", torch.eye(16, device=self.weight.device), persistent=False)

    def forward(self, values, disable_backward_quant=False):
        batch, sequence, _ = values.shape
        assert values.dtype == self.weight.dtype == torch.bfloat16
        assert self.had.device == values.device
        assert values.is_contiguous()
        return nn.functional.linear(values, self.weight).reshape(batch, sequence, -1)


def test_layers_of_quartet_ii_get_bf16_weights_and_train_fp32_ones(monkeypatch):
    install(monkeypatch, "quartet2", __path__=[])
    install(monkeypatch, "quartet2.linear", Quartet_II_linear=FakeQuartet)
    layers = converted("quartet2", four_over_six=False)
    assert [each.kernel[0].four_over_six for each in layers] == [False] * 6
    layer = layers[0]
    layer.bias = nn.Parameter(torch.ones(layer.out_features))
    values = torch.randn(4, 32, layer.in_features)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(values)
    expected = values.bfloat16() @ layer.weight.bfloat16().T + layer.bias.bfloat16()
    assert torch.allclose(out, expected)
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert "weight" not in dict(layer.kernel[0].named_parameters()), "an optimizer would update it"


def test_nvfp4_of_torchao_has_no_state_of_its_own(monkeypatch):
    calls = []

    def product(values, weight, bias=None, *, sign_vector, kernel_preference=None, sr_seed=None):
        calls.append((sign_vector, sr_seed.item()))
        return values @ weight.T

    install(monkeypatch, NVFP4, nvfp4_linear=product)
    for _ in range(2):
        monkeypatch.setitem(sys.modules, OURS, None)
        del sys.modules[OURS]
        for layer in converted("torchao", recipe="nvfp4"):
            layer(torch.ones(1, layer.in_features))
    assert calls[:6] == calls[6:], "a resumed run rounds as before"
    assert len(set(calls)) == 6, "each layer has its own"
    assert all(set(signs) <= {1, -1} and len(signs) == 16 for signs, _ in calls)
