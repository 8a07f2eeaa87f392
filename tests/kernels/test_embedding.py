"""The lookup against torch's own: the same bits, whole in every graph."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from neobert.kernels.vocabulary import embedding

ROWS, WIDTH, PADDING = 13, 8, 0
IDS = {"packed": (40,), "rows": (4, 10)}
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler
]


def draw(shape):
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, ROWS, shape, generator=generator)
    weight = torch.randn(ROWS, WIDTH, generator=generator)
    grad = torch.randn(*shape, WIDTH, generator=generator)
    assert (ids == PADDING).any()
    return ids, weight, grad


def output_and_gradient(look_up, weight, ids, grad):
    weight.grad = None
    out = look_up(ids, weight)
    out.backward(grad)
    return out.detach(), weight.grad


@pytest.mark.parametrize("shape", IDS.values(), ids=IDS)
@pytest.mark.parametrize("padding_id", [None, PADDING])
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_output_and_gradient_are_those_of_the_module_to_the_bit(backend, padding_id, shape):
    ids, weight, grad = draw(shape)
    module = nn.Embedding(ROWS, WIDTH, padding_idx=padding_id, _weight=weight.clone())
    wanted = output_and_gradient(lambda ids, _: module(ids), module.weight, ids, grad)

    def look_up(ids, weight):
        return embedding(ids, weight, padding_id)

    compiled = torch.compile(look_up, backend=backend, fullgraph=True) if backend else look_up
    found = output_and_gradient(compiled, nn.Parameter(weight), ids, grad)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])
    assert found[1].dtype == torch.float32
    assert found[1][PADDING].any() == (padding_id is None)


@pytest.mark.parametrize("shape", IDS.values(), ids=IDS)
def test_the_operator_keeps_its_promises(shape):
    ids, weight, _ = draw(shape)
    torch.library.opcheck(torch.ops.neobert.embedding, (ids, weight.requires_grad_(), PADDING))
    grad = torch.randn(*shape, WIDTH)
    torch.library.opcheck(torch.ops.neobert.embedding_backward, (grad, ids, ROWS, PADDING))


def operators_of(look_up):
    """Name what the graphs of a compiled lookup hold once they are taken apart as inductor does."""
    seen: list[str] = []

    def note(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    from torch._inductor.decomposition import select_decomp_table

    backend = aot_autograd(fw_compiler=note, bw_compiler=note, decompositions=select_decomp_table())
    ids, weight, grad = draw((40,))
    compiled = torch.compile(look_up, backend=backend, fullgraph=True)
    output_and_gradient(compiled, nn.Parameter(weight), ids, grad)
    return seen


def test_no_compiler_takes_the_gradient_apart():
    apart = operators_of(lambda ids, weight: nn.functional.embedding(ids, weight, PADDING))
    assert any("index_put" in name for name in apart)
    whole = operators_of(lambda ids, weight: embedding(ids, weight, PADDING))
    assert not any("index_put" in name for name in whole)
    assert "neobert.embedding_backward.default" in whole
