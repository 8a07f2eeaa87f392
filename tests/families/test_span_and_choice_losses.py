"""Losses of answers and of choices, over packed and padded rows: those of transformers' own models."""

import pytest
import torch
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering

from neobert.export.folder import write_hf_folder
from neobert.families.hf.attention import use_attention
from neobert.families.hf.heads import heads_by_auto_class
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig
from neobert.model.modeling_neobert import NeoBERTForMultipleChoice, NeoBERTForQuestionAnswering
from neobert.tasks.multiple_choice.objective import ChoiceObjective
from neobert.tasks.question_answering import objective as spans
from neobert.tasks.question_answering.examples import span_label
from neobert.tasks.question_answering.objective import SpanObjective
from tests.families.layouts import PACKED, SMALL
from tests.families.test_hf_packed import build, packed

SPANS, CHOICES = "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"
LENGTHS = (1, 30, 18, 2, 77, 9)
NEOBERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 128, "attn_backend": "sdpa", "max_position_embeddings": 130, "classifier_init_range": 1.0,
}  # fmt: skip
FAMILIES = [name for name in SMALL if SPANS in heads_by_auto_class(name)]


def with_wide_head(model, std=0.5):
    """Draw the head so that logits differ; a head of small weights has the loss of equal ones."""
    torch.manual_seed(0)
    for name, each in model.named_parameters():
        if not name.startswith(model.base_model_prefix) and each.dim() > 1:
            torch.nn.init.normal_(each, std=std)
    return model.eval()


def eager(model):
    """Call a model with its own attention."""

    def own(*arguments, **named):
        with use_attention(model, "eager"):
            return model(*arguments, **named)

    return own


def rows(lengths, *, is_packed):
    """A packed run, or the same documents as padded rows."""
    run = packed(lengths)
    if is_packed:
        return run
    documents = run["input_ids"].split(lengths)
    ids = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=1)
    place = torch.arange(max(lengths)).expand_as(ids)
    mask = place < torch.tensor(lengths)[:, None]
    return {"input_ids": ids, "position_ids": place, "attention_mask": mask, "cu_seqlens": None}


def span_losses(objective, own, lengths, *, is_packed):
    """Our loss of all documents, and the sum of the losses of another model, document by document."""
    inputs, draw = rows(lengths, is_packed=is_packed), torch.Generator().manual_seed(1)
    firsts = [int(torch.randint(length, (), generator=draw)) for length in lengths]
    lasts = [min(first + 2, length - 1) for first, length in zip(firsts, lengths, strict=True)]
    labels = torch.full((len(lengths) + is_packed,), -100)
    labels[: len(lengths)] = span_label(torch.tensor(firsts), torch.tensor(lasts))
    ours = objective(len(lengths), labels, **inputs)
    documents = packed(lengths)["input_ids"].split(lengths)
    theirs = sum(
        own(
            ids[None], start_positions=torch.tensor([first]), end_positions=torch.tensor([last])
        ).loss.double()
        for ids, first, last in zip(documents, firsts, lasts, strict=True)
    )
    return ours.item(), float(theirs)


@torch.no_grad()
@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_loss_of_answers_is_that_of_transformers(architecture, tmp_path):
    backbone = build(architecture, tmp_path, SPANS, {"num_labels": 2})
    with_wide_head(backbone.model)
    objective, own = SpanObjective(backbone), eager(backbone.model)
    for is_packed in {architecture in PACKED, False}:
        ours, theirs = span_losses(objective, own, LENGTHS, is_packed=is_packed)
        assert ours == pytest.approx(theirs, rel=1e-6)


@torch.no_grad()
def test_the_loss_of_answers_is_that_of_an_exported_neobert(tmp_path):
    model = NeoBERTForQuestionAnswering(NeoBERTConfig(**NEOBERT)).eval()
    write_hf_folder(model, {}, tmp_path)
    own = AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    for is_packed in (True, False):
        objective = SpanObjective(backbone_from_model(model))
        ours, theirs = span_losses(objective, own, LENGTHS, is_packed=is_packed)
        assert ours == pytest.approx(theirs, rel=1e-6)


@torch.no_grad()
def test_a_softmax_over_the_whole_row_is_another_loss(tmp_path, monkeypatch):
    backbone = build("bert", tmp_path, SPANS, {"num_labels": 2})
    with_wide_head(backbone.model)
    monkeypatch.setattr(spans, "LOWEST", 0.0)
    ours, theirs = span_losses(SpanObjective(backbone), eager(backbone.model), (30, 4), is_packed=False)
    assert ours > theirs * 1.01


@pytest.mark.parametrize("is_packed", [True, False])
def test_padding_has_no_loss_and_no_gradient(tmp_path, is_packed):
    """Not even the gradient of a document of padding alone, whose softmax is over no token."""
    backbone = build("bert", tmp_path, SPANS, {"num_labels": 2})
    inputs = rows((5, 7), is_packed=is_packed)
    labels = torch.full((2 + is_packed,), -100)
    loss = SpanObjective(backbone)(0, labels, **inputs)
    loss.backward()
    assert loss == 0
    assert all(not each.grad.any() for each in backbone.model.parameters() if each.grad is not None)


CHOICES_OF_ROWS = (2, 3, 1)
"""Choices of each row of `LENGTHS`."""


def choice_losses(objective, own, *, is_packed, groups=None):
    """Our loss of all rows, and the sum of the losses of another model, row by row."""
    inputs = rows(LENGTHS, is_packed=is_packed)
    size = len(LENGTHS) + is_packed
    of_row = [row for row, number in enumerate(CHOICES_OF_ROWS) for _ in range(number)]
    groups = torch.tensor([*of_row, *[-1] * is_packed]) if groups is None else groups
    labels = torch.full((size,), -100)
    firsts = [of_row.index(row) for row in range(len(CHOICES_OF_ROWS))]
    labels[firsts] = torch.tensor(CHOICES_OF_ROWS) - 1
    ours = objective(len(firsts), labels, groups=groups, **inputs)
    documents, theirs = packed(LENGTHS)["input_ids"].split(LENGTHS), 0.0
    for first, number in zip(firsts, CHOICES_OF_ROWS, strict=True):
        choices = documents[first : first + number]
        # Choice by choice, without padding: a model that pools by the mean needs no mask then.
        logits = [
            own(ids[None, None], attention_mask=torch.ones_like(ids[None, None])).logits for ids in choices
        ]
        target = torch.tensor([number - 1])
        theirs += float(torch.nn.functional.cross_entropy(torch.cat(logits, 1).double(), target))
    return ours.item(), theirs


@torch.no_grad()
@pytest.mark.parametrize("architecture", [name for name in SMALL if CHOICES in heads_by_auto_class(name)])
def test_the_loss_of_choices_is_that_of_transformers(architecture, tmp_path):
    backbone = build(architecture, tmp_path, CHOICES, {"pooling": "cls", "classifier_dropout": 0.1})
    with_wide_head(backbone.model, 0.1)
    objective, own = ChoiceObjective(backbone, 3), eager(backbone.model)
    for is_packed in {architecture in PACKED, False}:
        ours, theirs = choice_losses(objective, own, is_packed=is_packed)
        assert ours == pytest.approx(theirs, rel=1e-6)


@torch.no_grad()
def test_the_loss_of_choices_is_that_of_an_exported_neobert(tmp_path):
    model = NeoBERTForMultipleChoice(NeoBERTConfig(**NEOBERT)).eval()
    write_hf_folder(model, {}, tmp_path)
    own = AutoModelForMultipleChoice.from_pretrained(tmp_path).eval()
    objective = ChoiceObjective(backbone_from_model(model), 3)
    for is_packed in (True, False):
        ours, theirs = choice_losses(objective, own, is_packed=is_packed)
        assert ours == pytest.approx(theirs, rel=1e-6)
    mixed_up = torch.tensor([0, 0, 0, 1, 1, 2])
    assert choice_losses(objective, own, is_packed=False, groups=mixed_up)[0] != pytest.approx(
        theirs, rel=0.01
    )
