"""A compiled step of a transformers encoder has the losses of the eager one, in one graph or by blocks."""

import pytest
import torch
import torch.nn.functional as F

from neobert.families.hf import build as building
from neobert.model import attention
from neobert.model.backends import ChosenKernel
from neobert.objectives import TokenObjective
from neobert.objectives.compile import compile_encoder
from tests.families.test_hf_packed import build

# torch warns of its own look at the input of a block that is a graph.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
VARLEN = "torch_varlen"
LENGTHS = ((20, 30, 14), (1, 63), (40, 24))


def by_mask(q, k, v, cu_seqlens, _same, _longest, _longest_too, **options):
    """Attend as a varlen kernel of a GPU would, for attention in both directions over whole documents."""
    segment = torch.searchsorted(cu_seqlens, torch.arange(len(q), dtype=torch.int32), right=True)
    rows = (each.transpose(0, 1) for each in (q, k, v))
    return F.scaled_dot_product_attention(*rows, attn_mask=segment[:, None] == segment).transpose(0, 1)


@pytest.fixture
def _a_varlen_kernel(monkeypatch):
    monkeypatch.setitem(attention.LOADED, VARLEN, by_mask)
    loaded = torch.compiler.assume_constant_result(lambda _name: True)
    monkeypatch.setattr(attention, "load_attention", loaded)
    monkeypatch.setattr(attention, "check_tensors", lambda *_: None)
    monkeypatch.setattr(building, "choose_kernel", lambda *_: ChosenKernel(VARLEN, ""))
    torch.compiler.reset()


def labelled(lengths):
    total, draw = sum(lengths), torch.Generator().manual_seed(len(lengths))
    ids = torch.randint(5, 128, (total,), generator=draw)
    labels = torch.where(torch.rand(total, generator=draw) < 0.3, ids, -100)
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist(), total][:4]
    return {
        "num_targets": int((labels >= 0).sum()),
        "labels": labels,
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "attention_mask": None,
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
        "max_seqlen": 64,
    }


@pytest.mark.usefixtures("_a_varlen_kernel")
@pytest.mark.parametrize(
    ("architecture", "by_blocks"), [("bert", True), ("modernbert", False), ("modernbert", True)]
)
def test_a_compiled_packed_step(architecture, by_blocks, tmp_path):
    eager, compiled = (
        TokenObjective(build(architecture, tmp_path), True, capacity=32).eval() for _ in range(2)
    )
    compiled.compile_parts("aot_eager") if by_blocks else compiled.compile_loss("aot_eager")
    for lengths in LENGTHS:
        batch = labelled(lengths)
        ours, theirs = compiled(**batch), eager(**batch)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
        ours.backward()
        theirs.backward()
        assert compiled.evaluate(**batch).loss_sum.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert compiled.attention_used == dict.fromkeys(range(3), VARLEN)
    tables = (each.model.get_input_embeddings().weight.grad for each in (compiled, eager))
    torch.testing.assert_close(*tables, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_compiled_encoder_of_padded_rows(is_alone, tmp_path):
    rows = {"datacollator": {"pack_sequences": False}}
    eager, compiled = (build("bert", tmp_path, **rows) for _ in range(2))
    torch.compiler.reset()
    compile_encoder(compiled, "aot_eager", is_alone=is_alone)
    for width in (20, 33, 47):
        ids = torch.randint(5, 128, (3, width))
        mask = torch.arange(width) < torch.tensor([width, 13, 7])[:, None]
        inputs = {"input_ids": ids, "attention_mask": mask}
        for backbone in (eager, compiled):
            backbone.model.eval()
        torch.testing.assert_close(compiled.hidden(inputs), eager.hidden(inputs))
