"""The heads' losses under transformers' Trainer, whose steps may be accumulated from several batches."""

import copy

import pytest
import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments

from neobert.model import NeoBERTForSequenceClassification, NeoBERTLMHead

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
NUM_ROWS, LENGTH = 4, 9


def masked_rows() -> list[dict]:
    """Rows with 1, 2, 4 and 8 targets."""
    ids = torch.randint(5, 96, (NUM_ROWS, LENGTH))
    is_target = torch.arange(LENGTH) < torch.tensor([[1], [2], [4], [8]])
    labels = torch.where(is_target, ids, -100)
    return [{"input_ids": a, "labels": b} for a, b in zip(ids, labels, strict=True)]


def labelled_rows(labels) -> list[dict]:
    ids = torch.randint(5, 96, (len(labels), LENGTH))
    return [{"input_ids": a, "labels": b} for a, b in zip(ids, labels, strict=True)]


class InOrder(Trainer):
    def _get_train_sampler(self, *_, **__):
        return SequentialSampler(self.train_dataset)


def one_step(model, rows, folder, rows_per_batch, num_batches):
    """Return the parameters after one step of plain gradient descent, on a copy of the model."""
    options = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=rows_per_batch,
        gradient_accumulation_steps=num_batches,
        learning_rate=1.0,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = copy.deepcopy(model)
    InOrder(model, options, train_dataset=rows).train()
    return dict(model.named_parameters())


def heads(make_config):
    def classifier(labels, **changes):
        config = make_config(classifier_dropout=0.0, **changes)
        return NeoBERTForSequenceClassification(config), labelled_rows(labels)

    return {
        "masked": lambda: (NeoBERTLMHead(make_config()), masked_rows()),
        "classes": lambda: classifier(torch.tensor([0, 2, 1]), num_labels=3),
        "regression": lambda: classifier(torch.tensor([0.5, 3.0, -2.0]), num_labels=1),
        "many": lambda: classifier(torch.eye(3) + torch.eye(3).roll(1, 0), num_labels=3),
    }


@pytest.mark.parametrize(
    ("name", "rows_per_batch", "num_batches"),
    [("masked", 1, 4), ("masked", 3, 2), ("classes", 2, 2), ("regression", 2, 2), ("many", 2, 2)],
)
def test_an_accumulated_step_is_that_of_one_batch(make_config, tmp_path, name, rows_per_batch, num_batches):
    """Of unequal parts: rows have other numbers of targets, or the last batch has fewer rows."""
    model, rows = heads(make_config)[name]()
    whole = one_step(model, rows, tmp_path, len(rows), 1)
    parts = one_step(model, rows, tmp_path, rows_per_batch, num_batches)
    for key, before in model.named_parameters():
        torch.testing.assert_close(parts[key], whole[key], atol=1e-5, rtol=1e-4)
        assert key.startswith("model.encoder") or not torch.equal(whole[key], before)


@pytest.mark.parametrize("num_items", [12, torch.tensor(12), torch.tensor(12.0)])
def test_the_sum_is_divided_by_what_is_given(make_config, num_items):
    model, rows = NeoBERTLMHead(make_config()).eval(), masked_rows()
    inputs = {"input_ids": rows[1]["input_ids"][None], "labels": rows[1]["labels"][None]}
    torch.testing.assert_close(
        model(**inputs, num_items_in_batch=num_items).loss, model(**inputs).loss * 2 / 12
    )
