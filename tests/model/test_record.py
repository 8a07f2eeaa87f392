"""What the record of attention kernels says: eager, traced, recomputed, and where one block differs."""

import pytest
import torch

from neobert.model.attention import padded_attention, record_kernels, summarize_kernels

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler
]
NUM_LAYERS = 4
TRACED_LAYERS = 2  # each takes a second to trace


def run(model, inputs):
    ran = {}
    with record_kernels(ran):
        model(**inputs).logits.sum().backward()
    return ran


@pytest.fixture
def model(make_model):
    return make_model(num_hidden_layers=NUM_LAYERS).train()


@pytest.fixture
def padded():
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    return {"input_ids": torch.randint(5, 96, (2, 9)), "attention_mask": mask}


@pytest.mark.parametrize("recompute", [False, True])
def test_every_block_says_what_it_ran(model, pack, recompute):
    if recompute:
        model.enable_gradient_checkpointing()
    assert run(model, pack((5, 4)).inputs()) == dict.fromkeys(range(NUM_LAYERS), "sdpa")


@pytest.mark.parametrize("recompute", [False, True])
def test_a_traced_model_is_one_graph_that_says_it_once(make_model, padded, recompute):
    model = make_model(num_hidden_layers=TRACED_LAYERS).train()
    if recompute:
        model.enable_gradient_checkpointing()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    assert run(compiled, padded) == dict.fromkeys(range(TRACED_LAYERS), "sdpa")
    assert run(compiled, padded) == {}
    assert not torch._dynamo.utils.counters["graph_break"]
    torch.testing.assert_close(compiled(**padded).logits, model(**padded).logits, rtol=0, atol=1e-5)


def test_blocks_that_share_a_graph_say_it_at_the_first(model, padded):
    for block in model.model.transformer_encoder:
        block.compile(backend="eager")
    ran = run(model, padded)
    assert ran[0] == "sdpa"
    assert summarize_kernels(ran) == "sdpa"


def test_a_block_that_runs_another_kernel_stands_out(model, pack):
    block = model.model.transformer_encoder[2]
    forward, rows = block.forward, padded_attention(None)

    def leaky(x, rotation, attend):
        return forward(x[None], rotation, rows)[0]

    def kernel(q, k, v):
        from neobert.model.attention import record_kernel

        record_kernel("torch_varlen")
        return v

    honest = [each for each in model.model.transformer_encoder if each is not block]
    for each in honest:
        each.forward = lambda x, rotation, attend, forward=each.forward: forward(x, rotation, kernel)
    block.forward = leaky
    ran = run(model, pack((5, 4)).inputs())
    assert ran == {0: "torch_varlen", 1: "torch_varlen", 2: "sdpa", 3: "torch_varlen"}
    assert summarize_kernels(ran) == "sdpa: 2, torch_varlen: 0-1 3"


def test_nothing_is_kept_where_nobody_listens(model, padded):
    ran = run(model, padded)
    model(**padded)
    assert len(ran) == NUM_LAYERS
    assert run(model, padded) is not ran


def test_the_summary_of_nothing_is_none():
    assert summarize_kernels({}) is None
    assert summarize_kernels({0: "flex", 1: "flex"}) == "flex"
