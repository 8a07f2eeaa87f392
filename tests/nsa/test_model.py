"""The family: shape, names of weights, packed documents, and what it refuses."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from neobert.errors import ProjectError
from neobert.export.folder import write_hf_folder
from neobert.families.nsa.attention import SparseKernels
from neobert.families.nsa.build import backbone_from_model
from neobert.families.nsa.reference import AttentionResult, combine
from neobert.families.nsa.reference import attend as attend_by_reference
from neobert.families.table import model_shape, unsupported_keys
from neobert.kernel_table import Environment
from neobert.model.attention import record_kernel, record_kernels
from neobert.model.backends import BackendError, ChosenKernel, choose_backend
from tests.kept_memory import counting_kept
from tests.nsa.sizes import LENGTHS, ROWS, build, config_of, packed

OF_A_BLOCK = {
    "attn_norm.weight": (32,),
    "attn.q_proj.weight": (128, 32),
    "attn.k_proj.weight": (8, 32),
    "attn.v_proj.weight": (8, 32),
    "attn.g_proj.weight": (96, 32),
    "attn.o_proj.weight": (32, 128),
    "mlp_norm.weight": (32,),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
}
OF_FLA = {
    "model.embeddings.weight": (ROWS, 32),
    "model.norm.weight": (32,),
    "lm_head.weight": (ROWS, 32),
    **{f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in OF_A_BLOCK.items()},
}
"""Names and shapes of `NSAForCausalLM` in flash-linear-attention 0.6.0 with the sizes of the small model."""


def test_weights_have_the_names_and_shapes_of_flash_linear_attention():
    assert {name: tuple(each.shape) for name, each in build().model.state_dict().items()} == OF_FLA


def test_flash_linear_attention_loads_a_checkpoint(tmp_path):
    fla = pytest.importorskip("fla.models.nsa", exc_type=ImportError)
    model = build(rope_theta=500.0, tie_word_embeddings=False).model
    write_hf_folder(model, None, tmp_path)
    loaded, report = fla.NSAForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]
    own = model.state_dict()
    assert all(torch.equal(each, own[name]) for name, each in loaded.state_dict().items())
    stated = ("num_heads", "block_size", "block_counts", "window_size", "rope_theta", "norm_eps")
    assert all(getattr(loaded.config, name) == getattr(model.config, name) for name in stated)


@torch.no_grad()
def test_a_packed_document_is_the_document_alone():
    backbone = build()
    row = packed()
    hidden = backbone.hidden(row).split(LENGTHS)
    for ids, states in zip(row["input_ids"].split(LENGTHS), hidden, strict=True):
        alone = backbone.model.base_model(ids[None]).last_hidden_state[0]
        for other in (alone, backbone.plain(ids)):
            assert (states - other).abs().max() <= 1e-5 * states.abs().max()


@torch.no_grad()
def test_padding_at_the_end_changes_nothing_and_before_tokens_is_refused():
    model = build().model
    ids = packed((20, 20))["input_ids"].unflatten(0, (2, 20))
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    others = torch.where(mask == 1, ids, 1)
    assert torch.equal(model(ids, mask).logits[mask == 1], model(others, mask).logits[mask == 1])
    with pytest.raises(ValueError, match="tokens after padding"):
        model(ids, mask.flip(1))
    with pytest.raises(ValueError, match="one text at a time"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2, eos_token_id=None)


def test_a_saved_model_generates_without_a_cache(tmp_path):
    model = build().model.eval()
    write_hf_folder(model, None, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = packed((9,))["input_ids"][None]
    written = again.generate(ids, max_new_tokens=4, do_sample=False)
    for place in range(9, 13):
        assert written[0, place] == model(written[:, :place]).logits[0, -1].argmax()


def test_every_parameter_is_counted():
    for changes in ({}, {"tie_word_embeddings": False}):
        parameters = build(**changes).model.parameters()
        assert model_shape(config_of(**changes), ROWS).parameters.total == sum(map(torch.numel, parameters))


def test_flops_outside_of_attention_are_those_that_torch_counts():
    backbone, row = build(), packed((1,) * 7)
    counter = FlopCounterMode(display=False)
    with counter:
        backbone.head(backbone.hidden(row)).sum().backward()
    shape = model_shape(config_of(), ROWS)
    by_formula = 7 * (shape.product_flops + 6 * shape.decoder_products)
    # Of one token alone the reference computes two products of scores and three of values.
    per_token = 2 * shape.attention_width * 3 * shape.num_layers
    assert by_formula <= counter.get_total_flops() <= by_formula + 7 * 5 * per_token


class Operator(torch.autograd.Function):
    """Stand-in for an operator of a GPU, which keeps its inputs and its output, and no scores."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = q.clone()
        ctx.save_for_backward(q, k, v, out, torch.zeros(q.shape[:2]))
        return out


def kept_bytes(depth, tokens, **sizes):
    """Return the bytes that autograd keeps of a forward pass in bf16, without weights."""
    model = build(num_hidden_layers=depth, **sizes).model

    def attend(q, k, v, gates):
        branches = [Operator.apply(q, k, v) for _ in range(3)]
        return AttentionResult(combine(branches, gates.unbind(-1)), torch.zeros(0), torch.zeros(0))

    row = packed((tokens,))
    with counting_kept(model) as kept, torch.autocast("cpu", torch.bfloat16):
        model.base_model(input_ids=row["input_ids"], position_ids=row["position_ids"], attend=attend)
    return sum(kept.values())


def test_kept_activations_grow_with_depth_as_predicted():
    tokens, sizes = 512, {"hidden_size": 96, "num_heads": 16, "num_kv_heads": 1, "head_dim": 8}
    shape = model_shape(config_of(**sizes), ROWS)
    copies = 2 * shape.parameters.linear // shape.num_layers  # of weights, in bf16
    of_a_block = (kept_bytes(5, tokens, **sizes) - kept_bytes(2, tokens, **sizes)) / 3 - copies
    assert of_a_block / tokens == pytest.approx(shape.block_bytes("eager", 2, tokens), rel=0.03)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_heads": 24, "num_kv_heads": 2}, "model.num_heads"),
        ({"num_heads": 48, "num_kv_heads": 1}, "model.num_heads"),
        ({"head_dim": 5}, "model.head_dim"),
        ({"head_dim": 258}, "model.head_dim"),
        ({"block_counts": 2}, "model.block_counts"),
        ({"block_counts": 12, "block_size": 64}, "model.block_counts"),
        ({"block_size": 4}, "model.block_size"),
        ({"block_size": 12}, "model.block_size"),
        ({"datacollator": {"pack_sequences": False}}, "datacollator.pack_sequences"),
        ({"trainer": {"torch_compile": True}}, "trainer.torch_compile"),
        ({"trainer": {"cuda_graphs": True}}, "trainer.cuda_graphs"),
        ({"optimizer": {"name": "muonclip"}}, "optimizer.name"),
    ],
    ids=str,
)
def test_a_value_that_the_kernels_do_not_take_is_refused_and_its_hint_helps(changes, key):
    (found,) = unsupported_keys(config_of(**changes))
    assert found.key == key
    with pytest.raises(ProjectError, match=r"model\.type nsa"):
        build(**changes)
    wanted, value = found.hint.removeprefix("set ").split(" to ")
    value = {"true": True, "false": False}.get(value, value)
    section, name = wanted.split(".")
    change = {name: int(value)} if section == "model" else {section: {name: value}}
    assert list(unsupported_keys(config_of(**{**changes, **change}))) == []


def test_on_a_gpu_without_the_library_one_line_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla.ops.nsa", None)  # it may be installed
    features = model_shape(config_of(), 1).attention.features
    with pytest.raises(BackendError, match="needs flash-linear-attention, which cannot be imported") as error:
        choose_backend("nsa", Environment("cuda", "bfloat16", 64, (), features))
    assert error.value.hint.startswith("pip install 'flash-linear-attention>=0.6,<0.7'")


@pytest.mark.parametrize("ran", ["torch_varlen", "sdpa"])
def test_another_kernel_of_the_sliding_branch_is_reported_by_its_branch(monkeypatch, ran):
    class Operators:
        def __init__(self, sliding, spec, cu_seqlens, max_seqlen):
            self.others = cu_seqlens, max_seqlen, spec.selected

        def __call__(self, *row):
            record_kernel(ran)
            return attend_by_reference(*row, *self.others)

    operators = SimpleNamespace(Operators=Operators)
    monkeypatch.setitem(sys.modules, "neobert.families.nsa.operators", operators)
    backbone = backbone_from_model(
        build().model, SparseKernels(ChosenKernel("nsa_fla", "chosen"), "torch_varlen")
    )
    with record_kernels(found := {}):
        backbone.hidden(packed())
    expected = "nsa_fla" if ran == "torch_varlen" else "nsa_fla, sliding branch by sdpa"
    assert found == dict.fromkeys(range(2), expected)
    assert backbone.attention == "nsa_fla"
