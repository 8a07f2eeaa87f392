"""Adapters: their size, their training, their checkpoints, and what peft reads of them."""

import json
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

pytest.importorskip("peft", reason="adapters need the extra lora")

from neobert.adapters.lora import add_adapter, is_lora_factor, merge_adapter
from neobert.config import from_dict
from neobert.families.neobert.build import backbone_from_model
from neobert.families.table import model_shape
from neobert.model import NeoBERTConfig, NeoBERTForSequenceClassification, NeoBERTForTokenClassification
from neobert.plan.memory import predict_memory
from tests.faults.sharded_adapters import words_in
from tests.refusals import refusal_of

NAMES = ["O", "B-PER"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def config_of(**adapter):
    act = adapter.pop("hidden_act", "swiglu")
    model = SIZES | {"hidden_act": act, "pretrained_checkpoint": "base"}
    sections = {"task": "classification", "model": model, "dataset": {"max_seq_length": 32}}
    return from_dict(sections | {"adapter": {"type": "lora", "r": 3} | adapter})


def model_of(config, kind=NeoBERTForSequenceClassification):
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_act": config.model.hidden_act, "max_position_embeddings": 32}
    return kind(NeoBERTConfig(vocab_size=64, attn_backend="sdpa", classifier_init_range=0.5, **sizes)).eval()


# --- size


@pytest.mark.parametrize(
    "adapter", [{}, {"target_modules": ["qkv"]}, {"target_modules": ["wo", "w3"]}, {"hidden_act": "gelu"}]
)
def test_the_plan_counts_the_weights_that_are_trained(adapter):
    config = config_of(**adapter)
    model = model_of(config)
    add_adapter(backbone_from_model(model), config)
    trained = {name: each.numel() for name, each in model.named_parameters() if each.requires_grad}
    factors = sum(count for name, count in trained.items() if is_lora_factor(name))
    assert factors == model_shape(config, 64).adapter_parameters
    assert {name.split(".")[0] for name in trained if not is_lora_factor(name)} == {"dense", "classifier"}


def test_frozen_weights_have_no_gradient_no_moments_and_cost_a_third_less():
    config = config_of()
    whole = replace(config, adapter=replace(config.adapter, type=None))
    few, all_of_them = (model_shape(each, 64) for each in (config, whole))
    assert few.trained_parameters.total < all_of_them.trained_parameters.total == all_of_them.parameters.total
    assert few.product_flops == 4 * few.parameters.linear + 6 * few.adapter_parameters
    assert all_of_them.product_flops == 6 * all_of_them.parameters.linear
    memory, more = (
        predict_memory(each, shape, 64, is_cuda=False, kernels="torch")
        for each, shape in ((config, few), (whole, all_of_them))
    )
    assert memory.gradients_mib == pytest.approx(few.trained_parameters.total * 4 / 2**20)
    assert memory.optimizer_mib == pytest.approx(2 * memory.gradients_mib)
    assert memory.weights_mib > more.weights_mib


# --- arithmetic


@pytest.mark.parametrize("kind", [NeoBERTForSequenceClassification, NeoBERTForTokenClassification])
@torch.no_grad()
def test_merged_weights_compute_what_the_adapter_computes(kind):
    config = config_of(alpha=5)
    model = model_of(config, kind)
    ids, mask = torch.randint(0, 64, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    untouched = model(input_ids=ids, attention_mask=mask).logits
    add_adapter(backbone_from_model(model), config)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, untouched), "B begins with zeros"
    for name, parameter in model.named_parameters():
        if is_lora_factor(name):
            parameter.normal_(std=0.1)
    adapted = model(input_ids=ids, attention_mask=mask).logits
    assert (adapted - untouched).abs().max() > 1e-2
    found = {}
    for scale in (5 / 3, 1.0):
        plain = model_of(config, kind)
        plain.load_state_dict(merge_adapter(model.state_dict(), scale))
        found[scale] = (plain(input_ids=ids, attention_mask=mask).logits - adapted).abs().max()
    assert found[5 / 3] < 1e-5
    assert found[1.0] > 1e-4, "another scale is noticed"


# --- refusals


def test_a_layer_that_the_blocks_lack_is_refused():
    config = config_of(target_modules=["query", "\x1b[2J"])
    error = refusal_of(add_adapter, "TSK008", "has unknown layers", model_of(config), config)
    assert "\x1b" not in error.message


# --- whole runs


COMPARED = """
import json, sys
import torch
from peft import PeftModel
from transformers import AutoModelForTokenClassification as Auto
base, tuned = sys.argv[1:]
settings = {"trust_remote_code": True, "dtype": torch.float32}
merged = Auto.from_pretrained(tuned, **settings).eval()
encoder = Auto.from_pretrained(base, num_labels=2, **settings)
adapted = PeftModel.from_pretrained(encoder, f"{tuned}/adapter").eval()
inputs = {"input_ids": torch.randint(5, 100, (2, 17)), "attention_mask": torch.ones(2, 17, dtype=torch.long)}
with torch.no_grad():
    first, second = merged(**inputs).logits, adapted(**inputs).logits
    print(json.dumps([(first - second).abs().max().item(), first.abs().max().item()]))
"""


@pytest.fixture
def words(tmp_path):
    return words_in(tmp_path)


@pytest.mark.usefixtures("warm")
def test_a_killed_run_with_an_adapter_ends_as_the_unbroken_one(make_run, run, killed_run, metrics, words):
    lower_case = {"vocab_size": 128, "lowercase": True, "strip_accents": True}  # its text has no capitals
    trainer = {"max_steps": 2, "save_steps": 0, "eval_steps": 0}
    pretrained = make_run("base", tokenizer=lower_case, trainer=trainer)
    assert run(pretrained) == 0
    base = pretrained / "checkpoints" / "2"
    options = {
        "task": "token_classification",
        "token_classification": {"label_names": NAMES},
        "dataset": words,
        "model": {"pretrained_checkpoint": str(base)},
        "tokenizer": {"path": str(base), "vocab_size": 128},
        "adapter": {"type": "lora", "r": 4},
        "trainer": {"max_steps": 24, "eval_steps": 12, "save_steps": 6, "metric_for_best_model": "eval/f1"},
    }
    whole = killed_run(9, **options)
    broken = whole.with_name("broken")
    assert metrics(whole)[-1]["eval/accuracy"] > 0.7, "three of five words are O"
    ends = [each / "checkpoints" / "24" for each in (whole, broken)]
    for name in ("adapter/adapter_model", "trainer_state/frozen"):
        first, second = (load_file(each / f"{name}.safetensors") for each in ends)
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())

    frozen, before = (
        load_file(ends[0] / "trainer_state/frozen.safetensors"),
        load_file(base / "model.safetensors"),
    )
    bare = {name.replace(".base_layer", ""): each for name, each in frozen.items()}
    assert all(torch.equal(each, before[name]) for name, each in bare.items()), "frozen to the last bit"
    assert before.keys() - bare.keys() == {name for name in before if name.startswith("decoder.")}
    moments = load_file(ends[0] / "trainer_state/optimizer.safetensors")
    assert all("lora_" in name or "classifier." in name for name in moments)

    command = [sys.executable, "-c", COMPARED, str(base), str(ends[0])]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    difference, size = json.loads(answer.splitlines()[-1])
    assert difference < 1e-5 < size

    config = from_dict(json.loads((broken / "resolved.json").read_text()))
    replicated, sharded = (reload(config, ends[1], is_sharded) for is_sharded in (False, True))
    assert replicated.keys() == sharded.keys()
    assert all(torch.equal(replicated[name], sharded[name]) for name in replicated)

    adapter = ends[1] / "adapter" / "adapter_model.safetensors"
    save_file({name: each[:2] for name, each in load_file(adapter).items()}, adapter)
    refusal_of(reload, "EXP005", "tensors are missing, unexpected or of another shape", config, ends[1])


def reload(config, checkpoint, is_sharded=False):
    """Read a checkpoint's weights as a resume does, after its manifest was verified; return them whole."""
    from torch.distributed.device_mesh import init_device_mesh

    from neobert.data.store.prepare import prepare
    from neobert.parallel import World, full_tensor
    from neobert.parallel.sharding import shard
    from neobert.precision.recipe import FP32
    from neobert.training.prepare_model import prepare_model

    task = prepare_model(config, prepare(config), World(FP32), is_fresh=False).task
    with one_rank() if is_sharded else nullcontext():
        if is_sharded:
            shard(task.objective, init_device_mesh("cpu", (1,)), FP32, overlaps_exchange=True, reshards=False)
        task.load(checkpoint)
        return {name: full_tensor(each).detach() for name, each in task.model.state_dict().items()}


@contextmanager
def one_rank():
    """Be the only rank of a process group: sharded parameters need one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
