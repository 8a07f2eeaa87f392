"""Probes of tasks, on tiny models: sound ones know every answer, and each planted fault misses one."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Assembler, Microbatch
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.windows import Cursor
from neobert.data.store.token_store import LengthStatistics, TokenStore
from neobert.data.tokenize.encoding import GROUP, Column
from neobert.families.attention import AttentionSpec
from neobert.families.neobert.build import backbone_from_model
from neobert.model import (
    NeoBERTConfig,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
    NeoBERTLMHead,
)
from neobert.model.heads import pool
from neobert.model.modeling_neobert import NeoBERTForMultipleChoice, NeoBERTForQuestionAnswering
from neobert.objectives import TokenObjective
from neobert.objectives.labelled import LabelledObjective
from neobert.probes.loss import loss_answers
from neobert.rehearsal.trials import fill_with_text
from neobert.tasks.classification.task import probe_classifier, with_every_label
from neobert.tasks.multiple_choice import objective as choices
from neobert.tasks.multiple_choice.task import probe_choices
from neobert.tasks.multiple_choice.task import with_every_label as every_choice
from neobert.tasks.question_answering import objective as spans
from neobert.tasks.question_answering.task import probe_answers, with_every_answer
from neobert.tasks.stored_labels import StoredLabels
from neobert.tasks.token_classification import task as tagger_task
from neobert.tasks.token_classification.task import probe_tagger
from neobert.tasks.token_task import with_most_targets
from tests.merged_documents import look_back_only, two_merged
from validators.known_answers import LIMITS

LABELS = StoredLabels(Column("label", "int64", is_per_token=False))

INPUTS = ("num_targets", "labels", "input_ids", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
RATES = masking_rates(RunConfig().datacollator)
SPEC = AttentionSpec(heads=2, kv_heads=2, head_size=8)
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


class Direct:
    """Asks an objective without a trainer around it."""

    def __init__(self, objective, inputs=INPUTS):
        self.objective, self.names = objective.eval(), inputs

    def inputs(self, batch):
        return {name: getattr(batch, name) for name in self.names}

    def loss(self, batch):
        return self.objective(**self.inputs(batch)).item()

    def score(self, batch):
        return self.objective.evaluate(**self.inputs(batch))

    def train(self, batch):
        optimizer = torch.optim.AdamW(self.objective.parameters(), lr=1e-2)
        for _ in range(10):
            optimizer.zero_grad()
            (self.objective(**self.inputs(batch)) / batch.num_targets).backward()
            optimizer.step()


def full_batch(*, is_packed, dtype="int64", num_texts=1) -> Microbatch:
    lengths = np.random.default_rng(0).integers(3, 17, 24)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.random.default_rng(1).integers(5, 60, offsets[-1]).astype(np.uint16)
    columns = {"label": np.arange(24).astype(dtype) % 2, GROUP: np.arange(24) % num_texts}
    store = TokenStore(tokens, offsets, LengthStatistics.from_lengths(lengths), columns)
    shape = BatchShape(16, 16, 48, is_packed=True) if is_packed else BatchShape(24, 16, 24, is_packed=False)
    batch = Assembler(shape, LABELS, 0, 0, 64).build(store, np.arange(20 // num_texts), 0, 0, Cursor())
    return fill_with_text(batch, 24)


def model_config(**settings):
    torch.manual_seed(0)
    return NeoBERTConfig(vocab_size=64, attn_backend="sdpa", decoder_init_range=0.2, **SHAPE, **settings)


def missed_by_a_classifier(*, is_packed, dtype="int64", pooling="avg"):
    num_labels = 2 if dtype == "int64" else 1
    model = NeoBERTForSequenceClassification(model_config(num_labels=num_labels, pooling=pooling))
    batch = with_every_label(full_batch(is_packed=is_packed, dtype=dtype), is_training=True)
    direct = Direct(LabelledObjective(backbone_from_model(model)))
    return missed([*loss_answers(direct, batch, SPEC, num_labels), *probe_classifier(direct, batch)])


def missed_by_a_language_model(*, is_packed):
    objective = TokenObjective(backbone_from_model(NeoBERTLMHead(model_config())), True)
    batch = with_most_targets(objective, RATES, relabelled(full_batch(is_packed=is_packed)), is_training=True)
    return missed(loss_answers(Direct(objective), batch, SPEC, 64))


def missed_by_a_tagger(*, is_packed):
    model = NeoBERTForTokenClassification(model_config(num_labels=3))
    batch = tagger_task.with_every_label(relabelled(full_batch(is_packed=is_packed)), is_training=True)
    direct = Direct(LabelledObjective(backbone_from_model(model)))
    return missed([*loss_answers(direct, batch, SPEC, 3), *probe_tagger(direct, batch, num_labels=3)])


def missed_by_spans(*, is_packed):
    model = NeoBERTForQuestionAnswering(model_config(classifier_init_range=0.5))
    batch = with_every_answer(full_batch(is_packed=is_packed), is_training=True)
    direct = Direct(spans.SpanObjective(backbone_from_model(model)))
    return missed([*loss_answers(direct, batch, SPEC, 2), *probe_answers(direct, batch)])


def softmax_over_the_run(monkeypatch):
    monkeypatch.setattr(
        spans, "group_by_window", lambda logits, inputs: logits.expand(len(inputs["cu_seqlens"]) - 1, -1, -1)
    )


def label_the_window_before(monkeypatch):
    real = spans.answer_positions
    monkeypatch.setattr(spans, "answer_positions", lambda labels: [each.roll(1) for each in real(labels)])


def missed_by_choices(*, is_packed):
    model = NeoBERTForMultipleChoice(model_config(classifier_init_range=0.5))
    batch = every_choice(full_batch(is_packed=is_packed, num_texts=3), is_training=True)
    direct = Direct(choices.ChoiceObjective(backbone_from_model(model), 4), (*INPUTS, "groups"))
    return missed([*loss_answers(direct, batch, SPEC, 1), *probe_choices(direct, batch)])


def mix_up_the_rows(monkeypatch):
    real = choices.group_by_row
    monkeypatch.setattr(
        choices,
        "group_by_row",
        lambda logits, labels, groups, most: real(logits.roll(1), labels, groups, most),
    )


def compare_all_choices(monkeypatch):
    monkeypatch.setattr(
        choices,
        "group_by_row",
        lambda logits, labels, _groups, _most: (logits.expand(len(labels), -1), labels),
    )


class Pairs(LabelledObjective):
    """Cross-entropy of each query over the second texts of all examples, by mean vectors."""

    def __init__(self, backbone, fault):
        super().__init__(backbone)
        self.fault = fault

    def forward(self, num_targets, labels, groups, **inputs):
        hidden = self.backbone.hidden(inputs).unflatten(0, inputs["input_ids"].shape)
        vectors = pool(hidden, inputs["attention_mask"], "avg", inputs["cu_seqlens"])
        queries, others = labels != IGNORED, groups.diff(prepend=groups[:1] - 1) == 0
        if self.fault != "padding":
            others &= groups >= 0
        if self.fault == "one text":
            vectors = torch.where(others[:, None], vectors.detach()[:1], vectors)
        scores = vectors[queries] @ vectors[others].T
        targets = (groups[others] == groups[queries][:, None]).int().argmax(1)
        return F.cross_entropy(scores, targets, reduction="sum")


def missed_by_pairs(*, is_packed, fault="", compares=True):
    batch = full_batch(is_packed=is_packed, num_texts=2)
    size = len(batch.groups)
    is_first = batch.groups.diff(prepend=batch.groups[:1] - 1) > 0
    labels = torch.where(is_first & (torch.arange(size) < batch.num_segments), 0, IGNORED)
    batch = replace(batch, labels=labels, num_targets=int((labels == 0).sum()))
    model = NeoBERTForSequenceClassification(model_config(num_labels=2))
    direct = Direct(Pairs(backbone_from_model(model), fault), (*INPUTS, "groups"))
    return missed(loss_answers(direct, batch, SPEC, 1, compares=compares))


@pytest.mark.parametrize(
    ("fault", "compares", "kinds"),
    [
        ("padding", True, {"same"}),
        ("one text", True, {"different"}),
        ("", False, {"same"}),  # a loss that is not meant to compare examples
    ],
)
def test_a_fault_of_pairs_is_noticed(fault, compares, kinds):
    assert missed_by_pairs(is_packed=True, fault=fault, compares=compares) == kinds


def relabelled(batch):
    """The same microbatch with a label for each token."""
    values = {each.name: getattr(batch, each.name) for each in fields(batch)}
    return Microbatch(**values | {"labels": torch.full_like(batch.input_ids, -100)})


def missed(answers):
    answers = list(answers)
    assert len({answer.kind for answer in answers}) == len(answers) >= 2
    return {each.kind for each in answers if LIMITS[each.kind].is_missed(each)}


@pytest.mark.parametrize(
    ("is_packed", "dtype", "pooling"), [(True, "float32", "cls"), (False, "int64", "max")]
)
def test_a_sound_classifier_knows_every_answer(is_packed, dtype, pooling):
    assert missed_by_a_classifier(is_packed=is_packed, dtype=dtype, pooling=pooling) == set()


def forget_the_mask(monkeypatch):
    monkeypatch.setattr("neobert.model.encoder.normalize_mask", lambda mask: None)


def change_labels(monkeypatch, change):
    forward = LabelledObjective.forward

    def changed(self, num_targets, labels, **inputs):
        return forward(self, num_targets, change(labels), **inputs)

    monkeypatch.setattr(LabelledObjective, "forward", changed)


def label_the_next_text(monkeypatch):
    change_labels(monkeypatch, lambda labels: labels.roll(1))


def label_all_alike(monkeypatch):
    change_labels(monkeypatch, lambda labels: labels.clamp(max=0))


def label_other_words(monkeypatch):
    moved = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    change_labels(monkeypatch, lambda labels: labels[moved])


@pytest.mark.parametrize(
    "missed_by",
    [
        missed_by_a_classifier,
        missed_by_a_language_model,
        missed_by_a_tagger,
        missed_by_spans,
        missed_by_choices,
        missed_by_pairs,
    ],
)
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_sound_task_knows_every_answer(missed_by, is_packed):
    assert missed_by(is_packed=is_packed) == set()


@pytest.mark.parametrize(
    ("missed_by", "fault", "is_packed", "kinds"),
    [
        (missed_by_a_classifier, two_merged, True, {"same"}),
        (missed_by_a_classifier, forget_the_mask, False, {"same"}),
        (missed_by_a_classifier, label_the_next_text, True, {"same", "different"}),
        (missed_by_a_classifier, label_all_alike, False, {"learned"}),
        (missed_by_a_language_model, two_merged, True, {"same"}),
        (missed_by_a_language_model, forget_the_mask, False, {"same"}),
        (missed_by_a_language_model, look_back_only, True, {"different"}),
        (missed_by_a_tagger, label_other_words, True, {"learned"}),
        (missed_by_spans, softmax_over_the_run, True, {"same"}),
        (missed_by_spans, two_merged, True, {"same"}),
        (missed_by_spans, label_the_window_before, False, {"learned"}),
        (missed_by_choices, mix_up_the_rows, True, {"same"}),
        (missed_by_choices, compare_all_choices, False, {"same"}),
    ],
)
def test_a_planted_fault_is_noticed(monkeypatch, missed_by, fault, is_packed, kinds):
    fault(monkeypatch)
    assert missed_by(is_packed=is_packed) >= kinds
