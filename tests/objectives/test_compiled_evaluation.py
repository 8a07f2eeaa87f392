"""The evaluation on what the training step runs on: the same loss as eager, and nothing compiled twice."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives.compile import compile_encoder
from neobert.objectives.tokens import TokenObjective

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler
]
VOCAB, LENGTH = 61, 12


def make_model(attn_backend="sdpa", num_layers=1) -> NeoBERTLMHead:
    """Make a model of one block: each more takes a second to trace."""
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    config = NeoBERTConfig(vocab_size=VOCAB, attn_backend=attn_backend, num_hidden_layers=num_layers, **shape)
    return NeoBERTLMHead(config)


def make_rows(rows: int, num_targets: int, length: int = LENGTH):
    ids = torch.randint(1, VOCAB, (rows, length))
    is_target = torch.zeros(rows * length, dtype=torch.bool)
    is_target[torch.randperm(rows * length)[:num_targets]] = True
    return {
        "num_targets": num_targets,
        "labels": torch.where(is_target.view(rows, length), ids, -100),
        "input_ids": ids,
        "attention_mask": torch.ones(rows, length, dtype=torch.bool),
    }


def make_run(lengths):
    total = sum(lengths)
    ids = torch.randint(1, VOCAB, (total,))
    return {
        "num_targets": 5,
        "labels": torch.where(torch.arange(total) < 5, ids, -100),
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "attention_mask": None,
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        "max_seqlen": LENGTH,
    }


def num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_two_graphs_and_no_more_however_steps_and_evaluations_take_turns():
    objective = TokenObjective(backbone_from_model(make_model()), True, capacity=16, eval_capacity=32)
    objective.compile_loss("eager")
    plain = TokenObjective(backbone_from_model(make_model()), True)
    for turn in range(3):
        objective.train()
        objective(**make_rows(4, 7 + turn)).backward()
        objective.eval()
        rows = make_rows(8, 20 + turn)
        score, wanted = objective.evaluate(**rows), plain.evaluate(**rows)
        assert score.loss_sum.item() == pytest.approx(wanted.loss_sum.item(), rel=1e-5)
        assert score.num_correct == wanted.num_correct
        assert num_graphs() == 2
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_packed_evaluation_is_that_of_eager_sdpa():
    objective = TokenObjective(backbone_from_model(make_model("flex")), True, capacity=8)
    objective.compile_loss("eager")
    for lengths in ((5, 12, 3), (12, 4, 4)):
        run = make_run(lengths)
        score = objective.evaluate(**run)
        wanted = TokenObjective(backbone_from_model(make_model()), True).evaluate(**run)
        assert score.loss_sum.item() == pytest.approx(wanted.loss_sum.item(), rel=1e-4)
    assert num_graphs() == 1


@pytest.mark.parametrize("is_alone", [True, False])
def test_padded_rows_of_more_lengths_than_a_compiler_has_patience_for(is_alone):
    objective, plain = (TokenObjective(backbone_from_model(make_model()), True) for _ in range(2))
    compile_encoder(objective.backbone, "eager", is_alone=is_alone)
    for length in range(5, 7 + torch._dynamo.config.recompile_limit):
        rows = make_rows(2, 4, length)
        loss = objective(**rows)
        loss.backward()
        assert loss.item() == pytest.approx(plain(**rows).item(), rel=1e-5)
    assert num_graphs() <= 4


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_step_tells_what_its_blocks_ran_and_an_evaluation_does_not(is_compiled):
    objective = TokenObjective(backbone_from_model(make_model(num_layers=2)), True, capacity=16)
    if is_compiled:
        objective.compile_loss("eager")
    objective.evaluate(**make_rows(4, 7))
    assert objective.attention_used == {}
    for _ in range(2):
        objective(**make_rows(4, 7))
        assert objective.attention_used == {0: "sdpa", 1: "sdpa"}


def gradient_operators(compile_it, batch):
    """Name the operators of a step's backward, whose result is that of an eager step."""
    objective = TokenObjective(backbone_from_model(make_model()), True, capacity=16)
    if compile_it is not None:
        compile_it(objective)
    loss = objective(**batch)
    with Called() as called:
        loss.backward()
    plain = TokenObjective(backbone_from_model(make_model()), True, capacity=16)
    plain(**batch).backward()
    torch.testing.assert_close(
        objective.model.model.encoder.weight.grad, plain.model.model.encoder.weight.grad
    )
    return called.names


class Called(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


OWN = "neobert::embedding_backward"


def test_a_compiled_step_looks_up_what_repeats_and_an_eager_one_has_no_need_to():
    batch = make_rows(4, 7)
    assert OWN not in gradient_operators(None, batch)
    assert OWN in gradient_operators(lambda each: each.compile_loss("aot_eager"), batch)
    for is_alone in (True, False):
        compiled = partial(compile_encoder, backend="aot_eager", is_alone=is_alone)
        assert OWN not in gradient_operators(lambda each, compiled=compiled: compiled(each.backbone), batch)


def test_the_loss_by_position_is_part_of_the_graph():
    model = make_model()
    batch = make_rows(2, 5) | {
        "position_ids": torch.tensor([0, 1023, 1024, 4096, 9000, 20000]).repeat(4).view(2, 12)
    }
    eager = TokenObjective(backbone_from_model(model), targets_only=True, capacity=8)
    eager.by_position = True
    expected = eager.evaluate(**batch)
    eager.compile_loss("aot_eager")
    found = eager.evaluate(**batch)
    torch.testing.assert_close(found.by_position, expected.by_position)
    assert found.by_position[1].sum() == 5
    assert found.by_position[0].sum().item() == pytest.approx(expected.loss_sum.item(), rel=1e-6)
