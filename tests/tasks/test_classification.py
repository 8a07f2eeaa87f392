"""Labelled texts: from files with the quirks of real ones to a head that transformers loads."""

import json
import math
import os
import random
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, pipeline

from neobert.config import from_dict
from neobert.data.batches.microbatch import Assembler
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.windows import Cursor
from neobert.data.sources.text_files import read_rows
from neobert.data.store.contents import describe
from neobert.data.store.prepare import prepare
from neobert.data.store.split_writer import SplitWriter
from neobert.data.store.token_store import LengthStatistics, TokenStore, open_split
from neobert.data.tokenize.encoding import Column, Counts, Encoded
from neobert.data.tokenize.framing import truncate_longest_first
from neobert.encoding import Encoder
from neobert.errors import ProjectError
from neobert.export.folder import write_hf_folder
from neobert.export.weights import read_weights
from neobert.families.backbone import Head
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig, NeoBERTForSequenceClassification
from neobert.objectives.labelled import LabelledObjective, summed_loss
from neobert.runfiles.checkpoint import folders
from neobert.tasks.classification.examples import LabelledTexts
from neobert.tasks.classification.labels import ClassLabelParser, ScoreParser
from neobert.tasks.classification.metrics import f1, matthews
from neobert.tasks.classification.rows import row_format
from neobert.tasks.classification.spec import describe_labels
from neobert.tasks.correlation import pearson, ranks
from neobert.tasks.spec import label_settings
from neobert.tasks.specs import reported_metrics
from neobert.tasks.stored_labels import StoredLabels
from neobert.tasks.weights import match_scores, start_from
from neobert.training.guards.stopping import EarlyStopping
from profiles.registry import resolve_run
from tests.framed_tokenizers import tokenizer_of
from validators.core import judge
from validators.planning import plan_run

LABELS = StoredLabels(Column("label", "int64", is_per_token=False))

GOOD, BAD = ("fine", "lovely", "great"), ("awful", "dull", "poor")
GLUE = os.environ.get("NEOBERT_GLUE")


def labelled(count: int, seed: int) -> list[tuple[str, int]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.randint(0, 1)
        words = [draw.choice(("the", "film", "is", "a", "very", "story")) for _ in range(draw.randint(2, 12))]
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label else BAD))
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> dict[str, object]:
    """A folder of TSV files as they are published: a byte order mark, lone quotes, no header."""
    folder, cache = tmp_path_factory.mktemp("reviews"), tmp_path_factory.mktemp("cache")
    for name, count in (("train", 240), ("dev", 40)):
        lines = [
            f'r{number}\t{label}\t"{text}' for number, (text, label) in enumerate(labelled(count, count))
        ]
        (folder / f"{name}.tsv").write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())
    (folder / "LICENSE.txt").write_text("not data")
    return {
        "path": str(folder),
        "cache_dir": str(cache),
        "column_names": ["id", "label", "sentence"],
        "tsv_quotes": False,
        "long_documents": "truncate",
        "eval_samples": None,
        "max_seq_length": 24,
    }


def options(reviews, **more):
    sections = {"task": "classification", "dataset": dict(reviews), "tokenizer": {"vocab_size": 128}}
    trainer = {"max_steps": 24, "eval_steps": 6, "save_steps": 6, "metric_for_best_model": "eval/mcc"}
    return sections | {"trainer": trainer} | more


@pytest.mark.parametrize("value", ["1", 1, 1.0, "1.0", True, "True", " 1"])
def test_a_class_is_its_number_however_it_is_spelled(value):
    assert ClassLabelParser("key", 2, ())(value, "here") == 1


def test_a_class_by_name_is_its_place():
    assert ClassLabelParser("key", 3, ("no", "maybe", "yes"))("yes", "here") == 2
    for value in (1, 1.0, Decimal(1), "1.0", True, "True"):
        for names in (("0", "1"), ("0.0", "1.0"), ("False", "True")):
            assert ClassLabelParser("key", 2, names)(value, "here") == 1


@pytest.mark.parametrize(
    ("label", "value", "problem"),
    [
        (ClassLabelParser("key", 2, ()), 2, "label 2 is outside 0 to 1"),
        (ClassLabelParser("key", 2, ()), -1, "outside 0 to 1"),
        (ClassLabelParser("key", 2, ()), "pos", "is not a class number"),
        (ClassLabelParser("key", 2, ()), 0.5, "is not a class number"),
        (ClassLabelParser("key", 2, ("no", "yes")), "Yes", r"is unknown \(classes: no, yes\)"),
        (ClassLabelParser("key", 2, ("v1", "01")), "v1.0", "is unknown"),
        (ClassLabelParser("key", 2, ("1", "2")), 0, "is unknown"),
        (ClassLabelParser("key", 2, ("v1", "01")), "1", "is unknown"),
        (ClassLabelParser("key", 2, ("no", "yes")), 2, "is unknown"),
        (ClassLabelParser("key", 2, ("no", "yes")), -1, "is unknown"),
        (ScoreParser("key"), "nan", "is not a finite number"),
        (ScoreParser("key"), [1], "the label has type list"),
    ],
)
def test_a_label_that_is_none_is_refused_with_its_place(label, value, problem):
    with pytest.raises(ProjectError, match=problem) as refusal:
        label(value, "train.tsv:7")
    assert (refusal.value.code, refusal.value.place) == ("DAT020", "train.tsv:7")


@pytest.mark.parametrize(
    "label",
    [ClassLabelParser("key", 2, ()), ClassLabelParser("key", 2, ("no", "yes")), ScoreParser("key")],
    ids=repr,
)
@pytest.mark.parametrize("value", ["nan", "NA", "None", math.nan])
def test_a_label_that_a_program_wrote_for_a_missing_one_is_to_be_emptied(label, value):
    with pytest.raises(ProjectError) as refusal:
        label(value, "train.tsv:7")
    assert refusal.value.hint == "empty the label, to leave out the row"


@given(st.lists(st.integers(0, 40), min_size=1, max_size=2), st.integers(2, 30))
def test_a_pair_is_cut_from_the_end_of_the_longer_text(lengths, room):
    parts = [list(range(length)) for length in lengths]
    if sum(lengths) <= room:
        return
    cut = truncate_longest_first(parts, room)
    assert sum(map(len, cut)) == room
    assert all(whole[: len(part)] == part for whole, part in zip(parts, cut, strict=True))
    if len(cut) == 2:
        losers = [len(part) for part, whole in zip(cut, parts, strict=True) if len(part) < len(whole)]
        assert all(size >= max(map(len, cut)) - 1 for size in losers)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> dict[str, object]:
    """Pairs whose second text has the word that decides, as JSON lines."""
    folder, cache = tmp_path_factory.mktemp("pairs"), tmp_path_factory.mktemp("cache")
    rows = [
        {"sentence1": "is it a story", "sentence2": text, "label": ("no", "yes")[label]}
        for text, label in labelled(280, 5)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"path": str(folder / "pairs.jsonl"), "cache_dir": str(cache), "eval_samples": 40}
    return data | {"long_documents": "truncate", "max_seq_length": 32}


PAIRS = {"pair_column": "sentence2", "label_names": ["no", "yes"]}


def test_a_pair_with_one_text_is_kept_and_counted_and_one_without_text_is_not_measured(pairs, caplog):
    config = from_dict(options(pairs, classification=PAIRS, trainer={}))
    data = LabelledTexts(config)
    texts = (("a film", ""), ("", "a film"), ("a film", "a film"), ("", ""))
    rows = [{"text": text, "pair": pair, "label": 1} for text, pair in texts]
    tokenizer = prepare(config).tokenizer
    caplog.clear()  # of the progress of the preparation
    counts = data.encoder(tokenizer).encode(rows).counts
    assert (counts.documents, counts.segments, counts.one_sided, counts.empty) == (4, 3, 2, 1)
    assert sum(counts.histogram) == counts.segments
    data.check("train", counts)
    assert caplog.messages == [
        "train: 1 row has no text and is left out",
        "train: 2 rows have only one of two texts",
    ]


@pytest.mark.parametrize("kind", ["trained", "nothing", "RoBERTa"])
def test_pairs_are_trained_and_their_checkpoint_classifies_pairs(
    make_run, run, metrics, pairs, tmp_path, kind
):
    """With a tokenizer of their own in padded rows; without padding, without markers, or with two of them."""
    max_steps = 96 if kind == "trained" else 24  # a padded microbatch holds four pairs
    trainer = {"max_steps": max_steps, "eval_steps": 0, "save_steps": 0}
    more = {"classification": PAIRS, "trainer": trainer, "datacollator": {"pack_sequences": max_steps == 24}}
    if kind != "trained":
        words = {word for text, _ in labelled(280, 5) for word in text.split()} | {"it"}
        tokenizer = tokenizer_of(kind, words)
        tokenizer.save_pretrained(tmp_path / "tok")
        more["tokenizer"] = {"path": str(tmp_path / "tok")}
    run_dir = make_run(**options(pairs) | more)
    assert run(run_dir) == 0
    assert metrics(run_dir)[-1]["eval/accuracy"] > 0.7, "one word of the second text decides"
    folder = run_dir / "checkpoints" / str(max_steps)
    classify = pipeline("text-classification", str(folder))
    decided = {"yes": "a fine film", "no": "a poor film"}
    found = [classify({"text": "is it a story", "text_pair": text}) for text in decided.values()]
    assert [each["label"] for each in found] == list(decided)
    if kind == "trained":
        return
    assert classify.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert (classify.model.config.vocab_size, classify.model.config.pad_token_id) == (128, None)
    encoder = Encoder.load(folder, pooling="cls")
    alone, together = (encoder.encode(texts) for texts in ([""], ["", "a fine film"]))
    assert np.abs(alone[0] - together[0]).max() < 1e-6


def test_the_scores_of_a_regression_are_facts_and_classes_are_none(reviews):
    scores = from_dict(options(reviews, classification={"problem": "regression"}, trainer={}))
    found = describe(scores, prepare(scores))["scores"]
    assert (found["min"], found["max"]) == (0.0, 1.0)
    assert found["mean"] == pytest.approx(0.5, abs=0.15)
    assert found["std"] == pytest.approx((found["mean"] * (1 - found["mean"])) ** 0.5)
    classes = from_dict(options(reviews, trainer={}))
    assert describe(classes, prepare(classes))["scores"] == {}


def test_metrics_are_those_of_the_definitions():
    guessed, true = np.array([1, 1, 0, 0, 1, 0]), np.array([1, 0, 0, 0, 1, 1])
    assert f1(guessed, true, 2) == pytest.approx(2 / 3)
    # Of three classes, without the third one in these texts: the mean over the classes as before.
    assert f1(guessed, true, 3) == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert f1(np.array([0, 0, 1]), np.array([0, 1, 1]), 2) == pytest.approx(2 / 3)
    assert matthews(guessed, true) == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3))
    assert matthews(np.zeros(4, int), np.array([0, 1, 0, 1])) == 0
    assert matthews(np.array([0, 1]), np.array([1, 1])) is None
    many = np.array([0, 1, 2, 2])
    assert (f1(many, many, 3), matthews(many, many)) == (1, 1)
    assert ranks(np.array([3.0, 1.0, 3.0])).tolist() == [2.5, 1.0, 2.5]
    assert pearson(np.array([1.0, 2, 4]), np.array([-1.0, -2, -4])) == pytest.approx(-1)
    assert pearson(np.ones(3), np.arange(3.0)) is None


def test_early_stopping_starts_from_minus_infinity_in_the_metrics_direction():
    stopping = EarlyStopping("eval/mcc", 2, 1)
    for value, worse in ((-0.5, 0), (-0.5, 1), (-0.2, 0), (None, 0), (-0.3, 1), (None, 1), (-0.2, 2)):
        stopping.count_evaluation(value)
        assert stopping.num_worse == worse
    falling = EarlyStopping("eval/loss", 2, -1)
    falling.count_evaluation(2.0)
    falling.count_evaluation(1.0)
    assert (falling.best, falling.num_worse) == (-1.0, 0)


# --- packed and padded

LENGTHS = (3, 7, 12, 1, 5)


def store() -> TokenStore:
    lengths = np.array(LENGTHS)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.random.default_rng(0).integers(5, 60, offsets[-1]).astype(np.uint16)
    return TokenStore(
        tokens, offsets, LengthStatistics.from_lengths(lengths), {"label": np.array([1, 0, 1, 0, 1])}
    )


def inputs_of(tokens: TokenStore, *, is_packed: bool):
    shape = BatchShape(3, 16, 8, is_packed=True) if is_packed else BatchShape(5, 16, 5, is_packed=False)
    batch = Assembler(shape, LABELS, 0, 0, 64).build(tokens, np.arange(5), 0, 0, Cursor())
    assert batch.num_targets == 5
    names = ("input_ids", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
    return {name: getattr(batch, name) for name in names}, batch.labels


def logits_of(model, tokens: TokenStore, *, is_packed: bool):
    inputs, labels = inputs_of(tokens, is_packed=is_packed)
    objective = LabelledObjective(backbone_from_model(model))
    logits = objective.logits(inputs)[:5]
    assert objective(5, labels, **inputs).item() == pytest.approx(summed_loss(logits, labels[:5]).item())
    return logits


def classifier(pooling: str) -> NeoBERTForSequenceClassification:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = NeoBERTConfig(vocab_size=64, attn_backend="sdpa", pooling=pooling, **shape)
    return NeoBERTForSequenceClassification(config).eval()


@pytest.mark.parametrize("pooling", ["avg", "cls", "max"])
@torch.no_grad()
def test_packed_texts_have_the_logits_of_padded_ones_and_of_each_alone(pooling):
    model, tokens = classifier(pooling), store()
    packed, padded = (logits_of(model, tokens, is_packed=kind) for kind in (True, False))
    assert torch.allclose(packed, padded, atol=1e-6)
    other = replace(tokens, tokens=tokens.tokens.copy())
    other.tokens[3:10] = 7
    changed = logits_of(model, other, is_packed=True)
    assert torch.equal(changed[[0, 2, 3, 4]], packed[[0, 2, 3, 4]])
    assert not torch.allclose(changed[1], packed[1], atol=1e-4)


@torch.no_grad()
def test_texts_that_are_run_together_are_noticed():
    model, tokens = classifier("avg"), store()
    inputs, _ = inputs_of(tokens, is_packed=True)
    inputs["cu_seqlens"][1] = inputs["cu_seqlens"][2]
    merged = LabelledObjective(backbone_from_model(model)).logits(inputs)
    assert not torch.allclose(merged[0], logits_of(model, tokens, is_packed=True)[0], atol=1e-4)


def test_scores_without_a_text_have_no_error_and_no_gradient():
    logits = torch.tensor([[1.0], [5.0]], requires_grad=True)
    loss = summed_loss(logits, torch.tensor([3.0, math.nan]))
    loss.backward()
    assert loss.item() == 4
    assert logits.grad.tolist() == [[-4.0], [0.0]]


# --- the store

columns = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@settings(max_examples=15)
@given(columns)
def test_side_columns_come_back_with_their_tokens(tmp_path_factory, lengths):
    folder, total = tmp_path_factory.mktemp("store"), sum(lengths)
    declared = (Column("label", "float32", is_per_token=False), Column("mask", "uint8", is_per_token=True))
    values = {"label": np.arange(len(lengths), dtype=np.float32), "mask": np.arange(total, dtype=np.uint8)}
    encoded = Encoded(np.arange(total, dtype=np.uint16), np.array(lengths), Counts(), None, values)
    writer = SplitWriter(folder, "train", np.dtype(np.uint16), declared)
    writer.append(encoded)
    writer.append(encoded)
    read = open_split(folder, "train", writer.finish())
    held = TokenStore.from_batches([encoded, encoded], declared)
    for found in (read, held):
        assert found.columns["label"].tolist() == [*values["label"], *values["label"]]
        assert found.columns["mask"].tolist() == [*values["mask"], *values["mask"]]
        assert (found.is_per_token("mask"), found.is_per_token("label")) == (True, False)


# --- whole runs


def test_a_killed_run_ends_as_the_unbroken_one(killed_run, metrics, reviews):
    """Trains from published TSV, packed, keeps the best checkpoint, and resumes to the last bit."""
    whole = killed_run(9, **options(reviews))
    lines = metrics(whole)
    last = lines[-1]
    assert last["eval/mcc"] > 0.5, "one word decides"
    assert set(last) >= {each.name for each in reported_metrics(from_dict({"task": "classification"}))}
    judged = {line["step"]: line["eval/mcc"] for line in lines if line["step"] and "eval/mcc" in line}
    assert (whole / "checkpoints" / "best").resolve().name == str(
        max(judged, key=lambda at: (judged[at], -at))
    )
    folder = whole / "checkpoints" / "24"
    head = AutoModelForSequenceClassification.from_pretrained(folder)
    assert (head.config.num_labels, head.config.problem_type) == (2, "single_label_classification")
    saved = read_weights(folder)
    assert all(torch.equal(saved[name], each) for name, each in head.state_dict().items())
    classify = pipeline("text-classification", str(folder))
    assert [each["label"] for each in classify(["a fine film", "a poor film"])] == ["LABEL_1", "LABEL_0"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    words = ("pipeline_tag: text-classification", "f1, matthews_correlation", "LABEL_0, LABEL_1", "| mcc |")
    assert all(word in card for word in words)
    assert "fill-mask" not in card


def test_a_run_stops_early_and_stays_stopped(make_run, run, metrics, reviews):
    trainer = {
        "max_steps": 60,
        "max_epochs": 2.0,
        "eval_steps": 2,
        "save_steps": 50,
        "metric_for_best_model": "eval/pearson",
        "early_stopping_patience": 2,
    }
    more = options(reviews, trainer=trainer, optimizer={"lr": 1e-9})
    run_dir = make_run(**more, classification={"problem": "regression"})
    assert run(run_dir) == 0
    bias = load_file(run_dir / "checkpoints" / "latest" / "model.safetensors")["classifier.bias"]
    assert bias.item() == pytest.approx(0.5, abs=0.15), "the mean of the scores; its random value is 0"
    last = metrics(run_dir)[-1]
    assert 2 <= last["step"] < 40, "neither max_steps nor 2 epochs of 60 microbatches in steps of 2"
    assert "eval/spearman" in last
    assert run(run_dir) == 0
    assert metrics(run_dir)[-1] == last
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [last["step"]]


def test_epochs_end_the_run(make_run, run, metrics, reviews):
    trainer = {"max_steps": 999, "max_epochs": 0.5, "eval_steps": 0, "gradient_accumulation_steps": 1}
    more = options(reviews, trainer=trainer, datacollator={"pack_sequences": False})
    run_dir = make_run(**more)
    assert run(run_dir) == 0
    assert metrics(run_dir)[-1]["step"] == 30, "240 texts in rows of 4, half of them"
    shorter = make_run("shorter", **options(reviews, trainer=trainer | {"max_steps": 1}))
    assert run(shorter) == 0
    beats = (shorter / "heartbeat_rank0.jsonl").read_text(encoding="utf-8")
    assert "trainer.max_steps 1 ends the run before trainer.max_epochs 0.5" in beats


def test_rows_without_text_or_label_are_left_out(make_run, run, metrics, tmp_path, caplog):
    text = tmp_path / "text"
    text.mkdir()
    rows = [{"sentence": text, "label": label} for text, label in labelled(80, 5)]
    empty = [{"sentence": None, "label": 1}, {"sentence": "", "label": 0}]
    unlabelled = [{"sentence": "a text", "label": None}]
    for name, own in (("train", rows[:60] + empty + unlabelled), ("dev", rows[60:] + empty[:1])):
        (text / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)), encoding="utf-8")
    dataset = {"path": str(text), "cache_dir": str(tmp_path), "long_documents": "truncate"}
    trainer = {"max_steps": 2, "eval_steps": 2, "metric_for_best_model": None}
    config = options(dataset | {"eval_samples": None, "max_seq_length": 24}, trainer=trainer)
    run_dir = make_run(**config)
    assert run(run_dir) == 0
    assert re.search(r"\(train, 1 file\): 2 rows have no text and are left out", caplog.text)
    assert re.search(r"\(train, 1 file\): 1 row has no label and is left out", caplog.text)
    assert re.search(r"\(dev, 1 file\): 1 row has no text and is left out", caplog.text)
    assert metrics(run_dir)[-1]["eval/mcc"] == 0.0
    assert "every text is predicted as the same class" in caplog.text
    resolved = from_dict(json.loads((run_dir / "resolved.json").read_text(encoding="utf-8")))
    prepared = prepare(resolved)
    facts = describe(resolved, prepared)
    file = text / "train.jsonl"
    assert facts["rows_without"] == {"text": 2, "label": 1}
    assert facts["first_row_without"] == {"text": f"{file}:61", "label": f"{file}:63"}
    for split, store, kept in (("train", prepared.train, 60), ("eval", prepared.eval, 20)):
        counts = prepared.report[split]
        assert (len(store), counts["segments"], sum(counts["labels"].values())) == (kept, kept, kept)
        assert counts["documents"] == kept + counts["empty"] + counts.get("left_out", {}).get("label", 0)
        assert np.diff(store.offsets).min() > 2, "more than the two special tokens"


def test_a_row_may_have_no_label():
    rows = row_format(from_dict({"task": "classification"}))
    columns = {"text": "Text", "label": "Label"}
    for text, label in ((None, None), ("", ""), (" ", None), ("a text", ""), ("a text", " ")):
        assert rows.row({"Text": text, "Label": label}, columns, "a.csv:2")["label"] is None
    assert rows.row({"Text": "", "Label": "1"}, columns, "a.csv:2")["label"] == 1
    with pytest.raises(ProjectError, match="not a class number"):
        rows.row({"Text": "", "Label": "pos"}, columns, "a.csv:2")


def test_the_encoder_of_a_pretraining_run_is_taken_over(make_run, run, reviews):
    data = {"dataset": {**reviews, "path": str(Path(reviews["path"]) / "train.tsv")}}
    pretrained = make_run("pretrained", **data, trainer={"max_steps": 2, "save_steps": 0, "eval_steps": 0})
    assert run(pretrained) == 0
    source = pretrained / "checkpoints" / "2"
    trainer = {"max_steps": 1, "eval_steps": 0, "metric_for_best_model": None}
    tuned = make_run(
        "tuned",
        **options(reviews, trainer=trainer, optimizer={"lr": 1e-12}),
        model={"pretrained_checkpoint": str(source)},
    )
    assert run(tuned) == 0
    before, after = read_weights(source), read_weights(tuned / "checkpoints" / "1")
    shared = before.keys() & after.keys()
    assert {name.split(".")[0] for name in before.keys() ^ after.keys()} == {"decoder", "dense", "classifier"}
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in shared)


def head(names):
    shape = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = NeoBERTConfig(**shape, num_labels=len(names), **label_settings(names))
    return NeoBERTForSequenceClassification(settings)


@pytest.mark.parametrize(
    ("outputs", "std", "bias", "factor"),
    [(1, 9000.0, 2.5, 9000.0), (1, 0.1, 2.5, 1.0), (61, 9000.0, 0.0, 1.0)],
)
def test_scores_set_bias_and_spread_of_a_head_of_one_score_only(outputs, std, bias, factor):
    head = Head(torch.nn.Linear(16, outputs))
    torch.nn.init.zeros_(head.linear.bias)
    before = head.linear.weight.detach().clone()
    match_scores(head, {"mean": 2.5, "std": std, "min": 0.0, "max": 5.0})
    assert head.linear.bias.tolist() == [bias] * outputs
    assert torch.equal(head.linear.weight, before * factor)


def test_a_score_is_computed_in_fp32_under_autocast():
    torch.manual_seed(0)
    head, hidden = Head(torch.nn.Linear(16, 1)), torch.randn(8, 16)
    torch.nn.init.constant_(head.linear.bias, 300.0)  # where values of bf16 are 2 apart
    with torch.autocast("cpu", torch.bfloat16):
        scores = head(hidden)
    torch.testing.assert_close(scores, head.linear(hidden), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("entailment", "contradiction", "neutral"), [0, 2, 1]),
        (("entailment", "neutral", "contradiction"), [0, 1, 2]),
        (("bad", "fine", "good"), [0, 1, 2]),
        (("yes", "no"), None),
    ],
)
def test_a_head_of_the_same_labels_in_another_order_is_reordered(tmp_path, names, rows):
    source, model = head(("entailment", "neutral", "contradiction")), head(names)
    torch.nn.init.normal_(source.classifier.bias)
    write_hf_folder(source, None, tmp_path)
    fresh = model.classifier.weight.clone()
    assert start_from(tmp_path, backbone_from_model(model)) == (rows is None), "whether the head is new"
    expected = fresh if rows is None else source.classifier.weight[rows]
    assert torch.equal(model.classifier.weight, expected)
    assert rows is None or torch.equal(model.classifier.bias, source.classifier.bias[rows])
    assert torch.equal(model.dense.weight, source.dense.weight)


@pytest.mark.parametrize("labels", [{"first": "no", "second": "yes"}, ["no", "yes"], "no"])
def test_labels_of_a_checkpoint_that_are_not_numbered_are_refused(tmp_path, labels):
    write_hf_folder(head(("no", "yes")), None, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"id2label": labels}))
    with pytest.raises(ProjectError, match="id2label does not map numbers to names") as refused:
        start_from(tmp_path, backbone_from_model(head(("yes", "no"))))
    assert (refused.value.code, refused.value.place) == ("EXP005", str(file))


@pytest.mark.parametrize(
    ("change", "code", "problem"),
    [
        ({"classification": {"label_column": "score"}}, "DAT011", "there is no column 'score'"),
        ({"classification": {"label_names": ["a", "b"]}}, "DAT020", "is unknown (classes: a, b)"),
        ({"dataset": {"tsv_quotes": True}}, "DAT001", "tsv_quotes"),
        ({"dataset": {"long_documents": "split"}}, "DAT020", "belongs to a whole text"),
        ({"dataset": {"column_names": ["id", "label"]}}, "DAT001", "dataset.column_names has 2"),
    ],
)
def test_data_that_does_not_fit_is_refused(reviews, tmp_path, change, code, problem):
    sections = options(reviews)
    sections["dataset"] |= {"cache_dir": str(tmp_path)} | change.pop("dataset", {})
    with pytest.raises(ProjectError) as refusal:
        prepare(from_dict(sections | change))
    error = refusal.value
    assert error.code == code
    assert problem in f"{error.message} {error.hint}"


def test_a_score_that_float32_cannot_hold_is_refused_with_its_line(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a", "label": 3.4e38}\n{"text": "b", "label": -1e39}\n', encoding="utf-8")
    config = from_dict({"task": "classification", "classification": {"problem": "regression"}})
    with pytest.raises(ProjectError, match=r"score '-1e[+]39' exceeds the range of float32") as refusal:
        list(read_rows(file, row_format(config)))
    assert (refusal.value.code, refusal.value.place) == ("DAT020", f"{file}:2")


@pytest.mark.parametrize("names", [["neg", "pos"], ["1", "0"]])
def test_label_counts_name_the_classes(tmp_path, names):
    """Also names that look like other numbers, and in data that is prepared already."""
    file = tmp_path / "train.jsonl"
    rows = [{"text": f"text {number} of many", "label": names[number % 3 == 0]} for number in range(90)]
    file.write_text("\n".join(map(json.dumps, rows)))
    dataset = {"path": str(file), "cache_dir": str(tmp_path / "cache"), "long_documents": "truncate"}
    sections = options(dataset | {"eval_samples": 30, "max_seq_length": 8})
    config = from_dict(sections | {"classification": {"label_names": names}})
    for _ in range(2):
        report = prepare(config).report
        assert report["train"]["labels"] == {names[0]: 40, names[1]: 20}
        assert report["eval"]["labels"] == {names[0]: 20, names[1]: 10}
    missing = from_dict(sections | {"classification": {"label_names": [*names, "new"]}})
    assert describe_labels(missing).classes == (*names, "new")


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["pos", "neg", "", "new"], "labels in the file: 'neg', 'new', 'pos'"),
        ([f"l{number:05}" for number in range(10_001)], "labels in the first 10,000 rows: 'l00000', "),
        ([f"l{number:02}" for number in range(40)], ", 'l09' and 30 more"),
        (["pos", "\x1b[2J\u202e" + 50 * "x"], f"'\\x1b[2J\\u202e{35 * 'x'}', 'pos'"),
    ],
)
def test_an_unknown_label_comes_with_the_labels_of_its_file(tmp_path, labels, found):
    file = tmp_path / "train.jsonl"
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    file.write_text("\n".join(map(json.dumps, rows)))
    sections = {"task": "classification", "dataset": {"path": str(file)}, "classification": {"num_labels": 2}}
    with pytest.raises(ProjectError, match="is not a class number; ") as refusal:
        list(read_rows(file, row_format(from_dict(sections))))
    assert found in refusal.value.message
    assert refusal.value.place == f"{file}:1"


# --- the light half


def test_rules_of_another_task_are_skipped_and_say_so():
    found = {}
    for profile in ("cpu-demo", "cpu-classify"):
        resolved = resolve_run(profile)
        _, checks = judge(resolved, plan_run(resolved))
        found[profile] = {check.id: check.message for check in checks}
    assert found["cpu-classify"]["DAT016"] == "applies to task pretrain, not to classification"
    applies = "applies to task classification or multiple_choice or contrastive, not to pretrain"
    assert found["cpu-demo"]["TSK001"] == applies


@pytest.mark.parametrize(("profile", "count"), [("cpu", 1), ("gpu", 1), ("cpu-classify", 0)])
def test_a_run_without_pretrained_weights_warns_unless_it_is_a_smoke_run(tmp_path, profile, count):
    file = tmp_path / "run.yaml"
    file.write_text("task: classification\ndataset: {path: labels.tsv, long_documents: truncate}\n")
    resolved = resolve_run(profile, [file])
    findings, _ = judge(resolved, plan_run(resolved))
    assert [finding.code for finding in findings if finding.code == "TSK004"] == ["TSK004"] * count


# --- real data


@pytest.mark.skipif(GLUE is None, reason="NEOBERT_GLUE does not name a folder of GLUE data")
@pytest.mark.parametrize(
    ("name", "section", "dataset", "count"),
    [
        ("SST-2", {}, {}, 67349),
        ("CoLA", {}, {"column_names": ["source", "label", "note", "sentence"]}, 8551),
        ("STS-B", {"problem": "regression", "pair_column": "sentence2", "label_column": "score"}, {}, 5749),
    ],
)
def test_glue_is_read_as_published(tmp_path, name, section, dataset, count):
    data = {"path": str(Path(str(GLUE)) / name), "tsv_quotes": False, "long_documents": "truncate"}
    config = from_dict(
        {
            "task": "classification",
            "classification": section,
            "dataset": data | dataset | {"cache_dir": str(tmp_path), "max_seq_length": 128},
            "tokenizer": {"vocab_size": 8192},
        }
    )
    report = prepare(config).report
    assert report["train"]["segments"] == count
    assert json.dumps(report["eval"])
