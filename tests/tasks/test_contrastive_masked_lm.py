"""The masked-LM loss next to the contrastive one: its gradient is added, over microbatches and ranks."""

from types import SimpleNamespace
from unittest import mock

import pytest

from neobert.tasks.contrastive.loss import InfoNCELoss
from neobert.tasks.contrastive.masked_lm import MaskedTerm, MixedEmbedder
from neobert.tasks.contrastive.reference import ReferenceStep
from neobert.tasks.contrastive.step import ContrastiveStep
from neobert.training.loop.steps import accumulate
from tests.tasks.contrastive_steps import TEMPERATURE, difference, gradients, mixed_embedder, with_masks
from tests.tasks.test_contrastive_step import BATCHES as PLAIN

# The gradients of both losses have about the same norm.
WEIGHT, LIMIT = 50.0, 0.05
LOSS, BATCHES = InfoNCELoss(TEMPERATURE), [with_masks(each) for each in PLAIN]
ON_TWO_RANKS = [BATCHES[0::2], BATCHES[1::2]]


def mixed(ranks, dropout=0.0):
    step = ContrastiveStep(LOSS, masked=MaskedTerm(WEIGHT))
    return gradients(step, ranks, dropout, mixed_embedder)


def error(ranks, dropout=0.0) -> float:
    """Return the difference that the rehearsal measures: of the step from its reference."""
    reference = gradients(ReferenceStep(LOSS, None, WEIGHT), ranks, dropout, mixed_embedder)
    return difference(reference, mixed(ranks, dropout))


def of_words(trainer, batches, _num_targets):
    """Do the step of pretraining on the masked tokens of the microbatches."""
    num_masked = sum(batch.num_masked for batch in batches)
    inputs = trainer.task.inputs
    task = SimpleNamespace(
        inputs=lambda batch, device: inputs(batch, device) | {"predicts_words": True},
        objective=trainer.module,
    )
    services = SimpleNamespace(**vars(trainer) | {"task": task})
    return accumulate(services, batches, num_masked)


@pytest.mark.parametrize("count", [1, 4])
def test_the_gradient_is_the_sum_of_both(count):
    own, masked = (gradients(step, [BATCHES[:count]], build=mixed_embedder) for step in (contrast, of_words))
    expected = [one + WEIGHT * other for one, other in zip(own, masked, strict=True)]
    assert difference(expected, mixed([BATCHES[:count]])) < 1e-6
    assert difference(expected, own) > LIMIT < difference(expected, masked)


def contrast(trainer, batches, num_targets):
    """Do the step without masked tokens; the head has a gradient of 0."""
    for name, parameter in trainer.module.named_parameters():
        if "predictions" in name:
            parameter.grad = parameter.new_zeros(parameter.shape)
    return ContrastiveStep(LOSS)(trainer, batches, num_targets)


@pytest.mark.parametrize("ranks", [[BATCHES[:1]], [BATCHES], ON_TWO_RANKS], ids=["one", "four", "two ranks"])
def test_the_gradient_is_that_of_one_graph_with_dropout(ranks):
    assert error(ranks, dropout=0.0 if len(ranks) > 1 else 0.1) < 1e-5


def test_two_ranks_have_the_gradient_of_one():
    assert difference(mixed([BATCHES]), mixed(ON_TWO_RANKS)) < 1e-5


@pytest.mark.parametrize("is_of_rank", [True, False], ids=["of the rank", "of the microbatch"])
def test_a_mean_over_too_few_tokens_is_found(is_of_rank):
    def own_mean(self, world, batches):
        return self.weight * world.dp_size / sum(batch.num_masked for batch in batches)

    def one_by_one(self, trainer, inputs, scale):
        scale = self.weight / inputs["num_masked"] / len(BATCHES)
        return add(self, trainer, inputs, scale)

    add = MaskedTerm.add_gradients
    name, fault = ("loss_scale", own_mean) if is_of_rank else ("add_gradients", one_by_one)
    with mock.patch.object(MaskedTerm, name, fault):
        assert error(ON_TWO_RANKS if is_of_rank else [BATCHES]) > LIMIT


def test_masks_that_are_forgotten_are_found():
    def unmasked(self, *arguments, **inputs):
        return forward(self, *arguments, **inputs | {"masked_ids": inputs["input_ids"]})

    expected = mixed([BATCHES])
    forward = MixedEmbedder.forward
    with mock.patch.object(MixedEmbedder, "forward", unmasked):
        assert difference(expected, mixed([BATCHES])) > LIMIT
