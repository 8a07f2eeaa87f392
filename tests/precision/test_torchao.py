"""Linear layers that torchao converts: which, with which results, and what a checkpoint has of them."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from neobert.config import from_dict, replace
from neobert.errors import ProjectError
from neobert.families.backbone import build_backbone
from neobert.families.table import model_shape
from neobert.objectives import compile as compile_module
from neobert.objectives.tokens import TokenObjective
from neobert.parallel import World
from neobert.precision.libraries import enabled_conversion
from neobert.precision.library import list_linear_layers
from neobert.precision.recipe import FP32
from neobert.precision.table import run_recipe
from neobert.precision.torchao import convert as conversion
from neobert.precision.torchao.section import TorchaoConfig
from neobert.precision.torchao.spec import TORCHAO
from neobert.probes.attention_suite import SpecialTokenIds
from tests.precision.test_libraries import linears

pytest.importorskip("torchao", reason="the extra torchao is not installed")

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
CAUSAL = ("llama", "qwen2", "phi3")
LAUNCH = [sys.executable, "-m", "launcher"]


def backbone_of(model, **section):
    task = "causal" if model.get("architecture") in CAUSAL else "pretrain"
    torchao = {"enable": True, "recipe": "mxfp8_emulated"} | section
    config = from_dict({"task": task, "model": SMALL | model, "torchao": torchao})
    shape = model_shape(config, 128)
    head = "AutoModelForCausalLM" if shape.attention.is_causal else "AutoModelForMaskedLM"
    return config, shape, build_backbone(config, SpecialTokenIds(), 128, World(FP32), head, {})


@pytest.mark.parametrize("section", [{}, {"skip_first_last_linear": False}, {"filter_fqns": ["w"]}])
@pytest.mark.parametrize(
    "model",
    [{}, {"hidden_act": "gelu"}]
    + [{"type": "hf", "architecture": name} for name in ("bert", "modernbert", *CAUSAL)],
    ids=lambda model: model.get("architecture", model.get("hidden_act", "swiglu")),
)
def test_the_plan_counts_the_layers_that_are_converted(model, section):
    config, shape, backbone = backbone_of(model, **section)
    before = linears(backbone, nn.Linear)
    run_recipe(config).convert(backbone)
    converted = {name for name, module in linears(backbone, nn.Linear).items() if module is not before[name]}
    expected = enabled_conversion(config).select_layers([*list_linear_layers(shape)])
    assert converted == {(each.block, each.name) for each in expected}
    assert all(linears(backbone, nn.Linear)[name].weight is before[name].weight for name in converted)


def test_a_filter_that_leaves_nothing_is_an_error():
    config, _, backbone = backbone_of({}, filter_fqns=["w", "qkv"])
    with pytest.raises(ProjectError, match="converts none of 8 linear layers"):
        run_recipe(config).convert(backbone)


def test_converted_blocks_are_compiled_one_by_one(monkeypatch):
    """Tracing the tensors of a recipe takes seconds per layer; equal blocks share one graph."""
    monkeypatch.setattr(compile_module, "refuse_sdpa_loop", lambda *_: None)  # of packed SDPA on a CPU
    config, _, backbone = backbone_of({})
    config = replace(config, "trainer.torch_compile", value=True)
    for each, is_by_block in ((config, True), (replace(config, "torchao.enable", value=False), False)):
        objective = TokenObjective(backbone, targets_only=True, capacity=8)
        compile_module.compile_objective(each, objective)
        assert all("forward" in vars(block) for block in backbone.blocks) is is_by_block
        for block in backbone.blocks:
            vars(block).pop("forward", None)


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    for name in [
        name for name in sys.modules if name.startswith(("torchao.", "neobert.precision.torchao.mxfp8"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    config, _, backbone = backbone_of({})
    with pytest.raises(ProjectError, match="the package torchao cannot be imported: "):
        run_recipe(config).convert(backbone)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", ["float8_tensorwise", "float8_rowwise", "mxfp8_emulated"])
def test_products_are_those_of_fp64_within_the_rounding_of_fp8(recipe, bias):
    """Output and gradients; e4m3 has three bits of mantissa, so one value is off by 1/16 at most."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 96, bias=bias)
    exact = copy.deepcopy(layer).double()
    values, wanted = torch.randn(128, 64), torch.randn(128, 96)
    made = conversion.convert_layer(TorchaoConfig(recipe=recipe), layer, seed=0)
    own, reference = values.clone().requires_grad_(), values.double().requires_grad_()
    out, right = made(own), exact(reference)
    out.backward(wanted.to(out.dtype))
    right.backward(wanted.double())
    pairs = [(out, right), (own.grad, reference.grad), (layer.weight.grad, exact.weight.grad)]
    if bias:
        pairs.append((layer.bias.grad, exact.bias.grad))
        assert (made(torch.zeros(32, 64)) - layer.bias).abs().max() < 1e-6, "the bias is added"
    for found, expected in pairs:
        error = (found.double() - expected).norm() / expected.norm()
        assert error < 1 / 16
        assert found is out or found.dtype == torch.float32
    assert (out.double() - right).norm() / right.norm() > 1e-3, "the products are not in fp8"


def test_float8_is_compiled_without_the_instruction_that_stores_nan():
    """torchao works around https://github.com/triton-lang/triton/issues/11111, in its function to convert."""
    from torch._inductor.codegen.triton import TritonOverrides

    conversion.convert_layer(TorchaoConfig(), nn.Linear(64, 96), seed=0)
    assert TritonOverrides.minimum("a", "b").startswith("tl.where")


def test_every_recipe_is_of_torchao():
    from torchao.float8 import Float8LinearConfig

    for name in TORCHAO.recipes:
        if name.startswith("float8"):
            Float8LinearConfig.from_recipe_name(name.removeprefix("float8_"))


RUN = """
profile: cpu-demo
trainer:
  {output_dir: run, max_steps: 6, eval_steps: 3, save_steps: 3, logging_steps: 1, mixed_precision: bf16}
scheduler: {warmup_steps: 1}
model: {hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 96}
"""


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUNCH, *arguments], cwd=folder, capture_output=True, text=True)


def test_a_run_goes_from_bf16_to_fp8_and_back_with_the_same_weights_in_its_checkpoints(tmp_path):
    """Steps 1 to 3 in bf16, 4 to 6 in emulated mxfp8, 7 to 9 in bf16; each continues the last."""
    file = tmp_path / "run.yaml"
    file.write_text(RUN.replace("max_steps: 6", "max_steps: 3"))
    assert launch(tmp_path, "train", "run.yaml").returncode == 0
    names = load_file(tmp_path / "run/checkpoints/3/model.safetensors").keys()
    for steps, section in ((6, "torchao: {enable: true, recipe: mxfp8_emulated}\n"), (9, "")):
        file.write_text(RUN.replace("max_steps: 6", f"max_steps: {steps}") + section)
        done = launch(tmp_path, "train", "run.yaml", "--resume", "auto")
        assert done.returncode == 0, done.stdout + done.stderr
        saved = load_file(tmp_path / f"run/checkpoints/{steps}/model.safetensors")
        assert saved.keys() == names
        assert {each.dtype for each in saved.values()} == {torch.float32}
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == [*range(1, 10)]
    blocked = (
        "import sys; sys.modules['torchao'] = None; from transformers import AutoModelForMaskedLM as M; "
    )
    load = f"{blocked} M.from_pretrained('run/checkpoints/6', trust_remote_code=True)"
    assert subprocess.run([sys.executable, "-c", load], cwd=tmp_path, capture_output=True).returncode == 0


def test_two_ranks_gather_converted_weights_in_one_byte_each(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ranks = str(Path(__file__).with_name("gathering_ranks.py"))
    done = subprocess.run([*torchrun, ranks, "found.json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["bf16"] - found["low"] == found["converted"]
    low, bf16 = found["losses"]
    assert low == pytest.approx(bf16, rel=0.01)
    assert low != bf16


GATHERED = """
distributed: {mode: fsdp2, nproc_per_node: 2}
torchao:
  enable: true
  recipe: float8_tensorwise
  enable_fsdp_float8_all_gather: true
  precompute_float8_dynamic_scale_for_fsdp: true
"""
REASON = ("--unguarded", "emulated on a CPU, which preflight refuses")


def test_a_run_that_gathers_in_fp8_resumes_bit_exactly_and_saves_plain_weights(tmp_path):
    """With and without scales computed in advance, which are the same."""
    file, checkpoints = tmp_path / "run.yaml", tmp_path / "run/checkpoints"
    file.write_text(RUN + GATHERED)
    done = launch(tmp_path, "train", "run.yaml", *REASON)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = load_file(checkpoints / "6/model.safetensors")
    assert {each.dtype for each in whole.values()} == {torch.float32}
    (checkpoints / "6").rename(tmp_path / "aside")
    file.write_text(RUN + GATHERED.replace("for_fsdp: true", "for_fsdp: false"))
    done = launch(tmp_path, "train", "run.yaml", "--resume", "auto", *REASON)
    assert done.returncode == 0, done.stdout + done.stderr
    resumed = load_file(checkpoints / "6/model.safetensors")
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_rehearsal_times_a_recipe_against_bf16_and_compares_the_losses(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        RUN.replace("max_steps: 6", "max_steps: 40") + "torchao: {enable: true, recipe: mxfp8_emulated}\n"
    )
    arguments = ("preflight", "run.yaml", "--level", "rehearsal", "--save-facts", "facts.json")
    done = launch(tmp_path, *arguments)
    found = json.loads((tmp_path / "facts.json").read_text())["rehearsal"]["low_precision"]
    assert found["recipe_kernels"] == found["bf16_kernels"] == "torch, sdpa"
    assert found["recipe_step_s"] > 0
    assert found["bf16_step_s"] > 0
    assert found["recipe_loss"] != found["bf16_loss"], "both trained in the same precision"
    assert abs(found["recipe_loss"] / found["bf16_loss"] - 1) < 0.002
    assert done.returncode == 0, f"{done.stdout}: an emulated recipe may be slower"
