"""The loss is the same however it is computed: masked or full logits, packed or padded, whole or in parts."""

import pytest
import torch
import torch.nn.functional as F

from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives import TokenObjective, check_labels
from neobert.objectives.tokens import gather_targets

VOCAB = 61
LENGTHS = [7, 1, 5, 11]


def build(masked_only: bool = True, tied: bool = False) -> TokenObjective:
    torch.manual_seed(3)
    config = NeoBERTConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        tie_word_embeddings=tied,
        embedding_init_range=0.5,
        decoder_init_range=0.3,
    )
    return TokenObjective(backbone_from_model(NeoBERTLMHead(config)), masked_only)


def packed(lengths=LENGTHS, chance=0.4, seed=0):
    """A packed microbatch with random tokens and targets."""
    draw = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(1, VOCAB, (total,), generator=draw)
    is_target = torch.rand(total, generator=draw) < chance
    return {
        "input_ids": ids,
        "labels": torch.where(is_target, ids, -100),
        "num_targets": int(is_target.sum()),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
        "max_seqlen": max(lengths),
    }


def padded(batch):
    """The same documents as rows."""
    lengths = batch["cu_seqlens"].diff().tolist()
    width = max(lengths)

    def rows(values, filler):
        parts = values.split(lengths)
        return torch.stack([F.pad(part, (0, width - len(part)), value=filler) for part in parts])

    return {
        "input_ids": rows(batch["input_ids"], 0),
        "labels": rows(batch["labels"], -100),
        "num_targets": batch["num_targets"],
        "position_ids": rows(batch["position_ids"], 0),
        "attention_mask": torch.arange(width)[None] < torch.tensor(lengths)[:, None],
    }


def loss_and_gradients(objective, *batches):
    objective.zero_grad()
    loss = sum(objective(**batch) for batch in batches)
    loss.backward()
    return loss.detach(), {name: each.grad.clone() for name, each in objective.named_parameters()}


def assert_same(left, right):
    assert left[0].item() == pytest.approx(right[0].item(), rel=1e-6)
    for name, gradient in left[1].items():
        torch.testing.assert_close(gradient, right[1][name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", [packed, lambda: padded(packed())])
def test_masked_and_full_logits_agree(layout, tied):
    batch = layout()
    assert_same(loss_and_gradients(build(True, tied), batch), loss_and_gradients(build(False, tied), batch))


def test_packed_and_padded_agree():
    batch = packed()
    assert_same(loss_and_gradients(build(), batch), loss_and_gradients(build(), padded(batch)))


def test_parts_add_up_to_the_whole():
    parts = [packed([7, 5], seed=1), packed([3], seed=2)]
    whole = {
        name: torch.cat([part[name] for part in parts]) for name in ("input_ids", "labels", "position_ids")
    }
    whole |= {
        "num_targets": sum(part["num_targets"] for part in parts),
        "cu_seqlens": torch.tensor([0, 7, 12, 15], dtype=torch.int32),
        "max_seqlen": 7,
    }
    assert_same(loss_and_gradients(build(), *parts), loss_and_gradients(build(), whole))


def test_the_sum_is_the_cross_entropy_of_the_logits():
    batch, objective = packed(), build()
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "cu_seqlens", "max_seqlen")}
    logits = objective.model(**inputs).logits
    expected = F.cross_entropy(logits, batch["labels"], reduction="sum").item()
    assert objective(**batch).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("masked_only", [True, False])
def test_without_targets_the_loss_is_zero_and_the_graph_whole(masked_only):
    loss, gradients = loss_and_gradients(build(masked_only), packed(chance=0.0))
    assert loss.item() == 0.0
    assert all((gradient == 0).all() for gradient in gradients.values())


@pytest.mark.parametrize("masked_only", [True, False])
def test_evaluation_counts_what_training_minimises(masked_only):
    batch, objective = packed(chance=1.0), build(masked_only)
    score = objective.evaluate(**batch)
    assert score.loss_sum.item() == objective(**batch).item()
    assert not score.loss_sum.requires_grad
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "cu_seqlens", "max_seqlen")}
    hits = objective.model(**inputs).logits.argmax(-1) == batch["labels"]
    assert score.num_correct == hits.sum()


def test_hits_are_counted_on_targets_only():
    batch, objective = packed(), build(masked_only=False)
    with torch.no_grad():
        objective.model.decoder.weight.zero_()
        objective.model.decoder.bias.zero_()
        objective.model.decoder.bias[9] = 1.0
    batch["labels"] = torch.where(batch["labels"] != -100, 9, -100)
    assert objective.evaluate(**batch).num_correct == batch["num_targets"]


def test_the_loss_is_summed_in_fp32_under_bf16():
    batch, objective = packed(), build()
    exact = objective(**batch).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(**batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=2e-2)
    assert loss.item() != exact


@pytest.mark.parametrize("label", [VOCAB, -1, -99])
def test_a_label_outside_the_vocabulary_is_an_index_error(label):
    batch = packed()
    batch["labels"][batch["labels"] != -100] = label
    with pytest.raises(IndexError, match=f"label {label} is outside the vocabulary of 61 tokens"):
        check_labels(batch["labels"], VOCAB)
    with pytest.raises(IndexError):
        build()(**batch)


def test_gradients_repeat_to_the_bit_on_two_threads():
    """Gathers, embeddings and sums must not depend on which thread comes first."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        objective, batch = build(), packed([160] * 20)
        _, first = loss_and_gradients(objective, batch)
        for _ in range(2):
            _, again = loss_and_gradients(objective, batch)
            assert all(torch.equal(first[name], again[name]) for name in first)
    finally:
        torch.set_num_threads(before)


def test_legal_labels_pass():
    check_labels(torch.tensor([-100, 0, VOCAB - 1]), VOCAB)


@pytest.mark.parametrize("capacity", [1, 4, 16, 24])
@pytest.mark.parametrize("chance", [0.0, 0.4, 1.0])
def test_a_capacity_changes_nothing_but_the_shape(capacity, chance):
    """Below the capacity rows are filled up; above it there are more of them, and no target is lost."""
    batch, exact = packed(chance=chance), build()
    roomy = TokenObjective(exact.backbone, True, capacity)
    assert_same(loss_and_gradients(exact, batch), loss_and_gradients(roomy, batch))
    assert roomy.evaluate(**batch).num_correct == exact.evaluate(**batch).num_correct


def test_fillers_repeat_no_row_and_carry_no_label():
    hidden, labels = torch.arange(6.0)[:, None], torch.tensor([-100, 3, -100, 5, -100, -100])
    rows, picked = gather_targets(hidden, labels, 5)
    assert picked.tolist() == [3, 5, -100, -100, -100]
    assert rows[:2, 0].tolist() == [1.0, 3.0]
    assert len(set(rows[2:, 0].tolist())) == 3


def test_the_number_of_targets_recompiles_nothing_within_the_capacity():
    torch._dynamo.reset()
    objective = TokenObjective(build().backbone, True, 16)
    objective.compile_loss("eager")
    counts = []
    for seed, chance in enumerate((0.1, 0.2, 0.0, 0.3, 1.0)):
        batch = padded(packed(chance=chance, seed=seed))
        plain = TokenObjective(objective.backbone, True)(**batch)
        assert objective(**batch).item() == pytest.approx(plain.item(), rel=1e-6)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    first = counts[0]
    assert counts == [first] * 4 + [first + 1], "only the microbatch beyond the capacity compiles"
    torch._dynamo.reset()
