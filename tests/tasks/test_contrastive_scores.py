"""Losses of scores are those of sentence-transformers; a step over ranks has the gradient of one graph."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from neobert.tasks.contrastive.loss import InfoNCELoss
from neobert.tasks.contrastive.reference import ReferenceStep
from neobert.tasks.contrastive.scored import ScoredDocuments, ScoreLoss, cosent
from neobert.tasks.contrastive.step import ContrastiveStep
from tests.tasks.contrastive_steps import TEMPERATURE, batch_of, difference, gradients

NONE = float("nan")
LOSS, OF_SCORES = InfoNCELoss(TEMPERATURE), ScoreLoss(TEMPERATURE, 0.5)


def scored(lengths, scores, seed):
    """Return a microbatch whose documents have these scores; None for an example without."""
    flat = [
        value
        for example, found in zip(lengths, scores, strict=True)
        for value in (NONE, *(found or [NONE] * (len(example) - 1)))
    ]
    return replace(batch_of(lengths, seed), scores=torch.tensor(flat))


PAIRS = [
    scored([(3, 5), (4, 6), (7, 3)], [[0.1], [0.9], [0.5]], 0),
    scored([(2, 9)], [[0.5]], 1),
    scored([(5, 4), (6, 2)], [[0.8], [0.2]], 2),
    scored([(2, 3), (4, 4)], [[0.0], [1.0]], 3),
]
TAUGHT = [
    scored([(3, 5, 2), (4, 6, 3, 2)], [[0.9, 0.1], [0.4, 0.5, 0.1]], 0),
    scored([(2, 9, 4)], [[0.8, 0.3]], 1),
]
MIXED = [PAIRS[0], TAUGHT[0], scored([(3, 5), (4, 6, 2), (7, 3)], [None] * 3, 4), PAIRS[2]]
SOME_OF_EACH = [scored([(3, 5), (4, 6, 2), (7, 3), (5, 5)], [[0.1], [0.9, 0.2], None, None], 6)]


def steps(score_loss=OF_SCORES):
    return ReferenceStep(LOSS, score_loss), ContrastiveStep(LOSS, score_loss)


def error(ranks, dropout=0.0, score_loss=OF_SCORES):
    reference, step = steps(score_loss)
    return difference(gradients(reference, ranks, dropout), gradients(step, ranks, dropout))


@pytest.mark.parametrize(
    "batches", [PAIRS, TAUGHT, MIXED, SOME_OF_EACH], ids=["pairs", "taught", "mixed", "one"]
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_gradient_is_that_of_one_graph(batches, dropout):
    assert error([batches], dropout) < 1e-5


@pytest.mark.parametrize("batches", [PAIRS, MIXED], ids=["pairs", "mixed"])
def test_two_ranks_have_the_gradient_of_one(batches):
    ranks = [batches[0::2], batches[1::2]]
    _, step = steps()
    assert difference(gradients(step, [batches]), gradients(step, ranks)) < 1e-5
    assert error(ranks) < 1e-5


def test_the_gradient_of_first_components_is_that_of_one_graph():
    nested = ScoreLoss(TEMPERATURE, 0.5, (4, 8))
    assert error([PAIRS[:2], PAIRS[2:]], score_loss=nested) < 1e-5
    whole = gradients(steps()[1], [PAIRS])
    assert difference(whole, gradients(steps(nested)[1], [PAIRS])) > 0.05


def test_pairs_of_microbatches_are_compared_with_each_other():
    joint = gradients(steps()[1], [PAIRS[:1] + PAIRS[2:3]])
    single = [gradients(steps()[1], [[each]]) for each in (PAIRS[0], PAIRS[2])]
    mean = [(a * 3 + b * 2) / 5 for a, b in zip(*single, strict=True)]
    assert difference(joint, mean) > 0.05


def vectors(*shape):
    return normalize(
        torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=-1
    )


@pytest.mark.parametrize(
    "scores", [[0.3, 0.9, 0.3, 0.0, 1.0, 0.5], [0.0, 1.0, 0.0, 1.0, 1.0, 0.0], [0.5] * 6]
)
def test_the_loss_of_pairs_is_that_of_sentence_transformers(scores):
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    queries, documents = vectors(2, 6, 8)
    theirs = CoSENTLoss(None, scale=1 / TEMPERATURE)
    expected = theirs.compute_loss_from_embeddings([queries, documents], torch.tensor(scores))
    found = cosent((queries * documents).sum(1) / TEMPERATURE, torch.tensor(scores))
    assert float(found) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_the_loss_of_a_teacher_is_that_of_sentence_transformers(temperature):
    """Theirs has the square of the student's temperature as a factor."""
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss

    queries, *documents = vectors(4, 5, 8)
    scores = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theirs = DistillKLDivLoss(None, student_temperature=temperature, teacher_temperature=0.5)
    expected = theirs.compute_loss_from_embeddings([queries, *documents], scores) / temperature**2
    similar = torch.stack([(queries * each).sum(1) for each in documents], 1).flatten()
    rows = torch.arange(5).repeat_interleave(3)
    taught = ScoredDocuments(rows, rows, scores.flatten(), torch.full((15,), 3))
    found = ScoreLoss(temperature, 0.5).distillation_loss(similar, taught) / 5
    assert float(found) == pytest.approx(float(expected), abs=1e-6)
