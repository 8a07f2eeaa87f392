"""The masked-language-model loss and the classifier."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neobert.model import NeoBERTForSequenceClassification
from neobert.model.heads import pool


def test_the_loss_is_the_mean_over_labelled_tokens(make_model):
    model = make_model()
    ids, labels = torch.randint(5, 96, (2, 9)), torch.full((2, 9), -100)
    labels[0, 2], labels[1, 5] = 11, 12
    out = model(ids, labels=labels)
    by_hand = -(out.logits[0, 2].log_softmax(-1)[11] + out.logits[1, 5].log_softmax(-1)[12]) / 2
    torch.testing.assert_close(out.loss, by_hand)


@pytest.mark.parametrize("more", [{}, {"num_items_in_batch": torch.tensor(0)}])
def test_no_labels_at_all_is_a_zero_that_can_be_differentiated(make_model, more):
    model = make_model()
    ids = torch.randint(5, 96, (2, 9))
    loss = model(ids, labels=torch.full_like(ids, -100), **more).loss
    loss.backward()
    assert loss.item() == 0.0
    assert model.decoder.weight.grad.eq(0).all()


def test_packed_labels(make_model, pack):
    model, run = make_model(), pack((5, 4))
    out = model(**run.inputs(), labels=run.input_ids)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, run.input_ids))


@pytest.mark.parametrize("how", ["avg", "cls", "max"])
def test_pooling_by_hand(how):
    hidden, mask = torch.randn(3, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    found = pool(hidden, mask, how)
    for row, length in [(0, 5), (1, 2)]:
        real = hidden[row, :length]
        wanted = {"avg": real.mean(0), "cls": real[0], "max": real.max(0).values}[how]
        torch.testing.assert_close(found[row], wanted)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("how", ["avg", "cls", "max"])
def test_the_side_of_the_padding_does_not_matter(make_config, how):
    model = NeoBERTForSequenceClassification(make_config(pooling=how)).eval()
    ids, pads = torch.randint(5, 96, (1, 6)), torch.zeros(1, 3, dtype=torch.long)
    padded, mask = torch.cat([pads, ids], 1), torch.cat([pads, torch.ones_like(ids)], 1)
    alone = model(ids).logits
    torch.testing.assert_close(model(padded, mask).logits, alone, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(padded).logits, alone, atol=1e-4)


@pytest.mark.parametrize("how", ["avg", "max"])
def test_all_spellings_of_a_mask_pool_the_same(how):
    hidden, mask = torch.randn(2, 5, 4), torch.tensor([[True] * 5, [True, True, False, False, False]])
    wanted = pool(hidden, mask, how)
    assert torch.equal(pool(hidden, mask.long(), how), wanted)
    assert torch.equal(pool(hidden, torch.zeros(2, 5).masked_fill(~mask, -torch.inf), how), wanted)
    assert not torch.equal(pool(hidden, None, how), wanted)
    with pytest.raises(ValueError, match="need an attention_mask"):
        pool(hidden, mask[:, None, None], how)


def test_the_mean_is_taken_in_fp32():
    hidden = torch.full((1, 4096, 1), 1.01, dtype=torch.bfloat16)
    assert pool(hidden, torch.ones(1, 4096, dtype=torch.long), "avg").item() == hidden[0, 0, 0].item()


def test_nan_in_padding_does_not_reach_the_mean():
    hidden = torch.ones(1, 3, 2)
    hidden[0, 2] = torch.nan
    assert torch.equal(pool(hidden, torch.tensor([[1, 1, 0]]), "avg"), torch.ones(1, 2))


def test_the_head_starts_normal_and_the_encoder_uniform(make_config):
    model = NeoBERTForSequenceClassification(make_config(hidden_size=128, num_labels=64))
    for layer in (model.dense, model.classifier):
        assert abs(float(layer.weight.detach().std()) - 0.02) < 0.002
        assert layer.weight.abs().max() > 0.05
        assert layer.bias.eq(0).all()
    assert model.model.transformer_encoder[0].wo.weight.abs().max() <= 0.3
    assert float(model.model.transformer_encoder[0].wo.weight.detach().std()) > 0.15


SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def binary(logits, labels):
    return F.binary_cross_entropy_with_logits(logits.view(labels.shape), labels.float())


@pytest.mark.parametrize(
    ("given", "num_labels", "labels", "loss", "named"),
    [
        (None, 3, torch.tensor([0, 2]), F.cross_entropy, SINGLE),
        (None, 1, torch.tensor([0.5, -1.0]), lambda logits, y: F.mse_loss(logits[:, 0], y), REGRESSION),
        (None, 3, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), binary, MULTI),
        (REGRESSION, 3, torch.tensor([[0.5, 2.0, -1.0], [0.0, 1.0, 0.0]]), F.mse_loss, REGRESSION),
        (MULTI, 3, torch.tensor([[1, 0, 1], [0, 0, 1]]), binary, MULTI),
        (MULTI, 1, torch.tensor([1, 0]), binary, MULTI),
    ],
)
def test_the_loss_is_that_of_the_configuration_or_of_the_first_labels(
    make_config, given, num_labels, labels, loss, named
):
    """A pipeline of transformers reads the name of the problem in the configuration."""
    model = NeoBERTForSequenceClassification(make_config(num_labels=num_labels, problem_type=given)).eval()
    ids = torch.randint(5, 96, (2, 9))
    assert model(ids).logits.shape == (2, num_labels)
    assert model.config.problem_type == given
    out = model(ids, labels=labels)
    torch.testing.assert_close(out.loss, loss(out.logits, labels))
    assert model.config.to_dict()["problem_type"] == named


def test_dropout_is_in_the_head_only(make_config):
    model = NeoBERTForSequenceClassification(make_config())
    assert [name for name, part in model.named_modules() if isinstance(part, nn.Dropout)] == ["dropout"]
