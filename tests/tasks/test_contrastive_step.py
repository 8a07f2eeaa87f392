"""A step over microbatches and ranks has the gradient of one graph over all, and planted faults do not."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from neobert.data.batches.text_digests import text_digests
from neobert.data.store.pair_counts import pair_counts
from neobert.tasks.contrastive import loss as losses
from neobert.tasks.contrastive import step as steps
from neobert.tasks.contrastive.loss import Candidates, InfoNCELoss, Queries, info_nce, similarities
from neobert.tasks.contrastive.reference import ReferenceStep
from neobert.tasks.contrastive.step import ContrastiveStep, RepeatedForward
from neobert.tasks.contrastive.texts import Texts
from tests.tasks.contrastive_steps import TEMPERATURE, batch_of, difference, gradients

# Unequal numbers of pairs, of hard negatives, and of tokens.
BATCHES = [
    batch_of([(3, 5), (4, 6, 2), (7, 3)], 0),
    batch_of([(2, 9)], 1),
    batch_of([(5, 5, 5), (6, 2)], 2),
    batch_of([(2, 3), (4, 4, 4, 1)], 3),
]
LOSS = InfoNCELoss(TEMPERATURE)
ON_TWO_RANKS = [BATCHES[0::2], BATCHES[1::2]]


def error(ranks, dropout=0.0, loss=LOSS) -> float:
    """Return the difference that the rehearsal measures: of the step from its reference."""
    reference = gradients(ReferenceStep(loss), ranks, dropout)
    return difference(reference, gradients(ContrastiveStep(loss), ranks, dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_gradient_is_that_of_one_graph(count, dropout):
    assert error([BATCHES[:count]], dropout) < 1e-5


def test_two_ranks_have_the_gradient_of_one():
    alone = gradients(ContrastiveStep(LOSS), [BATCHES])
    assert difference(alone, gradients(ContrastiveStep(LOSS), ON_TWO_RANKS)) < 1e-5
    assert error(ON_TWO_RANKS) < 1e-5


def test_the_gradient_of_first_components_is_that_of_one_graph():
    nested = InfoNCELoss(TEMPERATURE, (4, 8))
    assert error(ON_TWO_RANKS, loss=nested) < 1e-5
    whole = gradients(ContrastiveStep(LOSS), [BATCHES])
    assert difference(whole, gradients(ContrastiveStep(nested), [BATCHES])) > 0.05


def test_chunks_of_queries_change_nothing(monkeypatch):
    whole = gradients(ContrastiveStep(LOSS), [BATCHES])
    monkeypatch.setattr(losses, "CHUNK", 3)
    assert difference(whole, gradients(ContrastiveStep(LOSS), [BATCHES])) < 1e-5


# --- planted faults: what the rehearsal's limit of 5 % catches

LIMIT = 0.05


def test_a_dropped_microbatch_is_found():
    def without_the_first(self):
        vectors = again(self)
        return vectors if self.inputs["num_targets"] != BATCHES[0].num_targets else vectors * 0

    again = RepeatedForward.run_with_graph
    with mock.patch.object(RepeatedForward, "run_with_graph", without_the_first):
        assert error([BATCHES]) > LIMIT


def test_microbatches_that_are_contrasted_one_by_one_are_found():
    def one_by_one(self, trainer, batches, num_targets):
        return sum(whole(self, trainer, [each], num_targets) for each in batches)

    whole = ContrastiveStep.__call__
    with mock.patch.object(ContrastiveStep, "__call__", one_by_one):
        assert error([BATCHES]) > LIMIT


def test_a_forgotten_rank_offset_is_found():
    def without_offset(*arguments):
        queries, candidates, own = losses.gather_texts(*arguments)
        return queries._replace(targets=queries.targets - own.start), candidates, own

    with mock.patch.object(steps, "gather_texts", without_offset):
        assert error(ON_TWO_RANKS) > LIMIT


def test_other_random_numbers_in_the_second_pass_are_found():
    with mock.patch.object(RepeatedForward, "run_with_graph", RepeatedForward.forward):
        assert error([BATCHES], dropout=0.1) > LIMIT
        assert error([BATCHES], dropout=0.0) < 1e-5


# --- false negatives


def found(queries, documents, owners, targets):
    draw = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(9, 4, generator=draw), dim=1)
    requested = Queries(vectors[: len(queries)], torch.tensor(queries), torch.tensor(targets))
    offered = Candidates(vectors[-len(documents) :], torch.tensor(documents), torch.tensor(owners))
    return similarities(requested, offered, TEMPERATURE)


def test_copies_of_the_answer_of_the_query_and_other_answers_are_masked():
    # Documents: the answer, a copy of it, the query's text, another answer to it, a hard negative of it.
    result = found([1], [10, 10, 1, 11, 12], [1, 2, 3, 1, 12], [0])
    assert result.logits.isinf().tolist() == [[False, True, True, True, False]]
    assert result.num_false == 3
    assert torch.isfinite(info_nce(result, torch.tensor([0])))


def test_texts_of_a_microbatch_are_found_with_their_owners():
    batch = batch_of([(3, 5, 2), (4, 6)])
    texts = Texts.from_batch(replace(batch, labels=torch.tensor([0, -100, -100, -100, -100])))
    digests = text_digests(batch)
    assert texts.queries.tolist() == [0]
    assert texts.targets.tolist() == [0]
    assert texts.documents.tolist() == [1, 2, 4]
    assert texts.owners.tolist() == [digests[0], digests[2], digests[3]]


def test_a_digest_is_of_the_tokens_and_their_order_alone():
    ids = torch.tensor([[5, 6, 7], [5, 6, 9], [6, 5, 7], [5, 6, 8]])
    digests = text_digests(batch_of([(3, 2), (3, 2)], ids=ids)).tolist()
    assert digests[1] == digests[3]
    assert len({*digests}) == 3


def test_pairs_of_a_step_that_share_a_text_are_counted():
    ids = torch.tensor([[1, 2, 3], [9, 9, 9], [4, 5, 6], [9, 9, 9], [7, 8, 9], [1, 2, 3]])
    batch = batch_of([(3, 3)] * 3, ids=ids)
    # The first two have the same document, and the query of the first is the document of the last.
    counts = pair_counts([batch, BATCHES[0]], 1)
    assert counts == {"per_step": 3.0, "false_share": pytest.approx(3 / 9 / 2)}
    assert pair_counts([BATCHES[0]], 4)["per_step"] == 12.0
    assert pair_counts([BATCHES[0]] * 3, 2)["per_step"] == 6.0


def test_pairs_are_compared_in_blocks(monkeypatch):
    whole = pair_counts(BATCHES, 4)
    monkeypatch.setattr("neobert.data.store.pair_counts.ROWS", 2)
    assert pair_counts(BATCHES, 4) == whole
