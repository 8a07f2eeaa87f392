"""Labelled words: from files with the quirks of real ones to a head that pipelines load."""

import json
import pickle
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForTokenClassification, pipeline

from neobert.config import from_dict
from neobert.config.schema import TokenizerConfig
from neobert.data.batches.microbatch import Assembler
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.windows import Cursor
from neobert.data.examples import load_examples
from neobert.data.sources.text_files import read_rows
from neobert.data.store.prepare import prepare
from neobert.data.store.token_store import LengthStatistics, TokenStore
from neobert.data.tokenize.encoding import Column
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.export.weights import read_weights
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig, NeoBERTForTokenClassification
from neobert.objectives.labelled import LabelledObjective
from neobert.parallel import World
from neobert.precision.recipe import FP32
from neobert.tasks.specs import reported_metrics, spec_of
from neobert.tasks.stored_labels import StoredLabels
from neobert.tasks.token_classification.examples import (
    label_first_tokens,
    split_between_words,
    word_indices,
)
from neobert.tasks.token_classification.metrics import TagMetrics, TagScheme
from tests.refusals import refusal_of

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES = ("O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC")))
NAMED = {
    "O": ("went", "to", "and", "saw", ","),
    "B-PER": ("Mara", "Jonas", "Susanne"),
    "I-PER": ("Ray", "Lund"),
    "B-LOC": ("Norstad", "Altburg", "Wesmere"),
    "I-LOC": ("Bay", "Hill"),
}


def tagged(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    draw, rows = random.Random(seed), []
    for _ in range(count):
        tags: list[str] = []
        for kind in draw.choices(("O", "PER", "LOC"), k=draw.randint(1, 9)):
            tags += ["O"] if kind == "O" else [f"B-{kind}", f"I-{kind}"][: draw.randint(1, 2)]
        words = [draw.choice(NAMED[tag]) for tag in tags]
        rows.append((words, tags))
    return rows


def conll(rows) -> str:
    texts = ("\n".join(f"{word} NN {tag}" for word, tag in zip(*row, strict=True)) for row in rows)
    return "-DOCSTART- -X- O\n\n" + "\n\n".join(texts) + "\n"


@pytest.fixture(scope="session")
def news(tmp_path_factory) -> dict[str, object]:
    """A folder as CoNLL-2003 is published, the evaluation as JSON lines with numbers for labels."""
    folder, cache = tmp_path_factory.mktemp("news"), tmp_path_factory.mktemp("cache")
    (folder / "train.conll").write_bytes(
        b"\xef\xbb\xbf" + conll(tagged(240, 1)).replace("\n", "\r\n").encode()
    )
    lines = [
        json.dumps({"tokens": words, "ner_tags": [NAMES.index(tag) for tag in tags], "id": number})
        for number, (words, tags) in enumerate(tagged(40, 2))
    ]
    (folder / "dev.jsonl").write_text("\n".join(lines))
    (folder / "LICENSE.txt").write_text("not data")
    return {"path": str(folder), "cache_dir": str(cache), "eval_samples": None, "max_seq_length": 24}


def options(news, **more):
    sections = {
        "task": "token_classification",
        "token_classification": {"label_names": NAMES},
        "dataset": dict(news),
        "tokenizer": {"vocab_size": 128},
    }
    trainer = {"max_steps": 24, "eval_steps": 6, "save_steps": 6, "metric_for_best_model": "eval/f1"}
    return sections | {"trainer": trainer} | more


def config_of(path: Path, **dataset):
    data = {"path": str(path), "cache_dir": str(path.parent / "cache"), "eval_samples": 1} | dataset
    return from_dict(options(data, trainer={}))


# --- files


def rows_of(path: Path, **dataset):
    return list(read_rows(path, spec_of(config := config_of(path, **dataset)).rows(config)))


@pytest.mark.parametrize(
    ("content", "dataset"),
    [
        ("-DOCSTART-\tO\n\nEU\tB-LOC\na b\tO\n \t \n\n\nfar\tO", {}),
        ("EU  NNP B-LOC\r\nago RB O\r\n\r\nfar RB O\r\n", {}),
        ("O x EU\nO x ago\n\nO x far\n", {"column_names": ["labels", "pos", "words"]}),
    ],
)
def test_a_conll_file_is_read(tmp_path, content, dataset):
    file = tmp_path / "train.conll"
    file.write_bytes(content.encode())
    found = [
        (row["text"].split("\n"), [NAMES[each] for each in row["tags"]]) for row in rows_of(file, **dataset)
    ]
    if dataset:
        assert found == [(["EU", "ago"], ["O", "O"]), (["far"], ["O"])]
    else:
        assert found == [(["EU", found[0][0][1]], ["B-LOC", "O"]), (["far"], ["O"])]
        assert found[0][0][1] in ("a b", "ago")


def test_a_word_that_only_begins_like_a_document_is_a_word(tmp_path):
    file = tmp_path / "train.conll"
    file.write_text("-DOCSTART- -X-\n-DOCSTART-ed O\n-DOCSTART-\n")
    assert [row["text"] for row in rows_of(file)] == ["-DOCSTART-ed"]


def row(tokens, tags):
    return json.dumps({"tokens": tokens, "tags": tags})


@pytest.mark.parametrize(
    ("name", "content", "code", "place", "problem"),
    [
        ("a.conll", "EU B-LOC\nago\n", "DAT001", ":2", "has 1 column (2 expected)"),
        ("a.conll", "\nEU\n", "DAT001", ":2", "a word and its label expected"),
        ("a.conll", "\n# sent_id = 1\nEU B-LOC\n", "DAT001", ":2", "is a comment"),
        ("a.conll", "EU B-LOC\n\n# sent_id = 2\nago O\n", "DAT001", ":3", "is a comment"),
        ("a.conll", "EU\tB-LOC\n# a text\n", "DAT001", ":2", "is a comment"),
        (
            "a.conll",
            "1 EU B-LOC O\n2 is O O\n3 ago O O\n",
            "DAT001",
            ":1",
            "has word numbers in its first column",
        ),
        ("a.conll", "# O\nEU B-LOC\nago\n", "DAT001", ":3", "has 1 column (2 expected)"),
        (
            "a.conll",
            "EU B-LOC\n\nhe O\nago B-DAY\n",
            "DAT020",
            ":3",
            "label 'B-DAY' is unknown (classes: O, B-PER",
        ),
        ("a.jsonl", row(["a", "b"], ["O"]), "DAT020", ":1", "the row has 2 words, but 1 label"),
        ("a.jsonl", row(["a"], None), "DAT020", ":1", "the row has 1 word, but 0 labels"),
        ("a.conll", "EU O\nago B-DAY\n", "DAT020", ":1", "; labels in the file: 'B-DAY', 'O'"),
        ("a.jsonl", row(["a"], [5]), "DAT020", ":1", "label 5 is outside 0 to 4; labels in the file: '5'"),
        ("a.jsonl", row(["a"], [-100]), "DAT020", ":1", "label -100 is outside"),
        ("a.jsonl", row(["a"], [True]), "DAT020", ":1", "label True is unknown"),
        ("a.jsonl", row(["a"], ["1"]), "DAT020", ":1", "label '1' is unknown"),
        ("a.jsonl", row("a b", "O O"), "DAT020", ":1", "the words of a row have type str, expected a list"),
        ("a.jsonl", row([1], ["O"]), "DAT020", ":1", "a word has type int"),
        ("a.jsonl", row(["a\nb"], ["O"]), "DAT020", ":1", "contains a line end"),
        ("a.jsonl", row(["\x1b[2J\nb"], ["O"]), "DAT020", ":1", r"word '\x1b[2J\nb'"),
        ("a.tsv", "words\ttags\nEU\tO\n", "DAT020", ":2", "expected a list"),
        ("a.txt", "EU O\n", "DAT011", "a.txt", "is plain text"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_their_place(tmp_path, name, content, code, place, problem):
    file = tmp_path / name
    file.write_text(content)
    assert refusal_of(rows_of, code, problem, file).place.endswith(place)


# --- tokens of words

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6), min_size=1, max_size=8
)


@pytest.fixture(scope="module")
def prepared(news):
    return prepare(from_dict(options(news, trainer={})))


@given(words=WORDS)
def test_each_word_with_a_token_has_its_label_once_on_its_first_token(prepared, words):
    """Against a tokenizer that is given one word after the other."""
    config = from_dict(options({"path": "x", "long_documents": "truncate"}, trainer={}))
    encoder = load_examples(config).encoder(prepared.tokenizer)
    backend = encoder.texts.backend
    tags = tuple(at % 5 for at in range(len(words)))
    encoded = encoder.encode([{"text": "\n".join(words), "tags": tags}])
    alone = [backend.encode(word, add_special_tokens=False).ids for word in words]
    ids = [each for word in alone for each in word]
    labels = [
        tag if at == 0 else IGNORED for word, tag in zip(alone, tags, strict=True) for at in range(len(word))
    ]
    if not ids:
        assert encoded.counts.empty == 1
        return
    assert encoded.tokens.tolist()[1:-1] == ids
    assert encoded.columns["tags"].tolist() == [IGNORED, *labels, IGNORED]
    lost = sum(not word for word in alone)
    assert encoded.counts.words == {"total": len(words), "without_token": lost, "cut": 0}


@pytest.mark.parametrize(("number", "dtype"), [(32_768, "int16"), (40_001, "int32")])
def test_any_number_of_labels_is_stored_and_named(tmp_path, number, dtype):
    names, last = [f"T{each}" for each in range(number)], number - 1
    rows = [{"tokens": ["a", "b"], "tags": [last, 0]} for _ in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    dataset = {"path": str(tmp_path / "a.jsonl"), "cache_dir": str(tmp_path / "c"), "max_seq_length": 16}
    sections = options(dataset, trainer={"per_device_train_batch_size": 2})
    data = prepare(from_dict(sections | {"token_classification": {"label_names": names}}))
    assert data.report["train"]["labels"] == {"T0": 40, names[last]: 40}
    labels = data.train.columns["tags"]
    assert (str(labels.dtype), set(np.unique(labels).tolist())) == (dtype, {IGNORED, 0, last})


def test_a_space_before_a_word_belongs_to_the_word():
    """Byte-level tokenizers count it to the token after it, or have a token for it."""
    offsets = np.array([[0, 2], [2, 6], [6, 7], [7, 7], [7, 9], [9, 9]])
    assert word_indices("EU\nago\n\nx", offsets).tolist() == [0, 1, 3, 3, 3, -1]
    labels = label_first_tokens(np.array([0, 1, 3, 3, 3, -1]), np.array([4, 3, 2, 1]))
    assert labels.tolist() == [4, 3, 1, IGNORED, IGNORED, IGNORED]


@pytest.fixture(scope="module")
def byte_level():
    texts = ["EU rejects German call in New York .", "Peter Blackburn lives in Brussels ."]
    return load_tokenizer(TokenizerConfig(algorithm="bpe", vocab_size=400), texts * 20)


@given(words=WORDS.map(lambda words: [word for text in words for word in text.split()]))
@example(words=["New", "York", "\u0948", "."])
@example(words=["[SEP]", "New", "[MASK]", "York[PAD].", "<mask>", "</s>"])
def test_labels_of_a_byte_level_tokenizer_are_where_transformers_puts_words(byte_level, words):
    """As `word_ids` of a tokenizer that is given a list of words, the usual way to use the model."""
    config = from_dict(options({"path": "x", "long_documents": "truncate"}, trainer={}))
    tags = tuple(at % 5 for at in range(len(words)))
    encoded = load_examples(config).encoder(byte_level).encode([{"text": "\n".join(words), "tags": tags}])
    used = byte_level.tokenizer(words, is_split_into_words=True, split_special_tokens=True)
    if not words:
        assert encoded.counts.empty == 1
        return
    ends = pairwise([None, *used.word_ids()])
    first = [IGNORED if word in (None, before) else tags[word] for before, word in ends]
    assert encoded.tokens.tolist() == used.input_ids
    assert encoded.columns["tags"].tolist() == first


@pytest.mark.parametrize("strips", [{}, {"lstrip": True}, {"rstrip": True}])
def test_a_word_that_spells_a_special_token_is_plain_text(prepared, strips):
    """A special token that takes the space after it would also take the label of the next word."""
    config = from_dict(options({"path": "x", "long_documents": "truncate"}, trainer={}))
    encoder = load_examples(config).encoder(prepared.tokenizer)
    backend = Tokenizer.from_str(encoder.texts.backend.to_str())
    backend.add_special_tokens([AddedToken("<end>", normalized=False, special=True, **strips)])
    special = backend.token_to_id("<end>")
    encoder = replace(encoder, texts=replace(encoder.texts, backend=backend))
    encoder = pickle.loads(pickle.dumps(encoder))  # as tokenizing processes receive it
    encoded = encoder.encode([{"text": "Mara\n<end>\nNorstad\na<end>", "tags": (1, 0, 3, 4)}])
    labels = encoded.columns["tags"]
    assert labels[labels != IGNORED].tolist() == [1, 0, 3, 4]
    assert encoded.counts.words == {"total": 4, "without_token": 0, "cut": 0}
    assert special not in encoded.tokens


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 9))
def test_long_texts_are_split_between_words(lengths, room):
    words = np.repeat(np.arange(len(lengths)), lengths)
    bounds = list(split_between_words(words, room))
    assert [at for start, stop in bounds for at in range(start, stop)] == list(range(len(words)))
    assert all(0 < stop - start <= room for start, stop in bounds)
    cuts = [start for start, _ in bounds[1:] if words[start] == words[start - 1]]
    assert all(lengths[words[cut]] > room for cut in cuts)


@pytest.mark.parametrize(
    ("fate", "pieces", "cut"), [("split", 3, 0), ("truncate", 1, 6), ("drop", 0, 9), ("error", 0, 9)]
)
def test_long_texts_lose_labels_only_where_they_are_cut(prepared, fate, pieces, cut):
    data = {"path": "x", "long_documents": fate, "max_seq_length": 5}
    encoder = load_examples(from_dict(options(data, trainer={}))).encoder(prepared.tokenizer)
    encoded = encoder.encode([{"text": "\n".join(".,." * 3), "tags": (1,) * 9}])
    assert (len(encoded.lengths), encoded.counts.words["cut"]) == (pieces, cut)
    assert encoded.counts.labels == ({"B-PER": 9 - cut} if cut < 9 else {})
    assert (encoded.too_long is None) == (fate != "error")


# --- entities


def entities_one_by_one(tags: list[str]) -> set[tuple[int, int, str]]:
    """The definition of conlleval, which seqeval follows, word by word."""
    found, start = set(), None
    for at, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        before, _, kind_before = (tags[at - 1] if at else "O").partition("-")
        ends = before != "O" and (mark in "OBS" or before in "ES" or kind != kind_before)
        begins = mark != "O" and (mark in "BS" or before in "OES" or kind != kind_before)
        if start is not None and ends:
            found.add((start, at, kind_before))
            start = None
        if begins:
            start = at
    return found


def entities(names, texts):
    tagging = TagScheme(names)
    labels = np.array([names.index(tag) for tags in texts for tag in tags], np.int64)
    text = np.repeat(np.arange(len(texts)), [len(tags) for tags in texts])
    return tagging.entities(labels, text)


def test_entities_are_those_of_seqeval():
    """`get_entities` of seqeval 1.2.2 for these tags, its ends inclusive."""
    tags = ["B-PER", "I-PER", "O", "I-LOC", "E-LOC", "S-PER", "I-PER", "B-PER", "B-PER", "I-LOC"]
    expected = {(0, 1), (3, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)}
    assert {(first, end - 1) for first, end, _ in entities(BIOES, [tags])} == expected


@given(st.lists(st.lists(st.sampled_from(BIOES), min_size=1, max_size=9), min_size=1, max_size=4))
def test_no_entity_spans_two_texts(texts):
    starts = np.cumsum([0, *map(len, texts)])
    expected = {
        (start + first, start + end, kind)
        for start, tags in zip(starts, texts, strict=False)
        for first, end, kind in entities_one_by_one(tags)
    }
    found = entities(BIOES, texts)
    assert {(first, end) for first, end, _ in found} == {(first, end) for first, end, _ in expected}
    kinds = {name[2:]: BIOES.index(name) for name in reversed(BIOES)}
    assert found == {(first, end, kinds[kind]) for first, end, kind in expected}


def test_metrics_of_labels_that_mark_no_entities_are_loss_and_accuracy():
    config = from_dict(
        {"task": "token_classification", "token_classification": {"label_names": ["NOUN", "VERB"]}}
    )
    assert [each.name for each in reported_metrics(config)] == ["eval/loss", "eval/accuracy"]


# --- packed and padded

LENGTHS = (3, 7, 12, 1, 5)


def store() -> TokenStore:
    lengths, draw = np.array(LENGTHS), np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = draw.integers(5, 60, offsets[-1]).astype(np.uint16)
    tags = np.where(draw.random(offsets[-1]) < 0.3, IGNORED, draw.integers(5, size=offsets[-1])).astype(
        np.int16
    )
    tags[offsets[:-1]] = IGNORED
    return TokenStore(
        tokens, offsets, LengthStatistics.from_lengths(lengths), {"tags": tags}, frozenset({"tags"})
    )


def batch_of(tokens: TokenStore, *, is_packed: bool):
    shape = BatchShape(3, 16, 8, is_packed=True) if is_packed else BatchShape(5, 16, 5, is_packed=False)
    return Assembler(shape, StoredLabels(Column("tags", "int16", is_per_token=True)), 0, 0, 64).build(
        tokens, np.arange(5), 0, 0, Cursor()
    )


def scored(batch):
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = NeoBERTConfig(
        vocab_size=64, attn_backend="sdpa", num_labels=5, classifier_init_range=1.0, **shape
    )
    objective = LabelledObjective(backbone_from_model(NeoBERTForTokenClassification(config).eval()))
    names = (
        "num_targets",
        "labels",
        "input_ids",
        "position_ids",
        "attention_mask",
        "cu_seqlens",
        "max_seqlen",
    )
    inputs = {name: getattr(batch, name) for name in names}
    score = objective.evaluate(**inputs)
    assert objective(**inputs).item() == pytest.approx(score.loss_sum.item())
    return score


@torch.no_grad()
def test_packed_words_have_the_logits_and_the_metrics_of_padded_ones():
    found = {}
    for is_packed in (True, False):
        batch = batch_of(store(), is_packed=is_packed)
        score = scored(batch)
        metrics = TagMetrics(torch.device("cpu"), NAMES)
        metrics.add(score, batch)
        found[is_packed] = score.logits[batch.labels != IGNORED], metrics.values(World(FP32))
    assert torch.allclose(found[True][0], found[False][0], atol=1e-6)
    assert found[True][1] == pytest.approx(found[False][1], abs=1e-6)
    assert 0 < found[True][1]["eval/accuracy"] < 1


# --- whole runs


def test_a_killed_run_ends_as_the_unbroken_one(killed_run, metrics, news):
    """Trains from published files, packed, keeps the best checkpoint, and resumes to the last bit."""
    whole = killed_run(9, **options(news))
    lines = metrics(whole)
    assert lines[-1]["eval/f1"] > 0.9, "a name decides"
    assert set(lines[-1]) >= {"eval/accuracy", "eval/precision", "eval/recall"}
    judged = {
        line["step"]: (line["eval/f1"], -line["eval/loss"])
        for line in lines
        if line["step"] and "eval/f1" in line
    }
    assert (whole / "checkpoints" / "best").resolve().name == str(max(judged, key=lambda at: judged[at]))

    folder = whole / "checkpoints" / "24"
    head = AutoModelForTokenClassification.from_pretrained(folder)
    assert tuple(head.config.id2label.values()) == NAMES
    saved = read_weights(folder)
    assert all(torch.equal(saved[name], each) for name, each in head.state_dict().items())
    tag = pipeline("token-classification", str(folder), aggregation_strategy="first")
    found = [(each["entity_group"], each["word"].lower()) for each in tag("Mara Lund went to Altburg")]
    assert found == [("PER", "mara lund"), ("LOC", "altburg")]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in card
    assert "Labels of words: O, B-PER" in card
    assert "join them with spaces, as in training" in card


def test_padded_words_stop_early_and_the_epochs_are_counted(make_run, run, metrics, news):
    trainer = {
        "max_steps": 60,
        "eval_steps": 2,
        "save_steps": 0,
        "metric_for_best_model": "eval/f1",
        "early_stopping_patience": 2,
    }
    more = options(news, trainer=trainer, optimizer={"lr": 1e-9}, datacollator={"pack_sequences": False})
    run_dir = make_run(**more)
    assert run(run_dir) == 0
    last = metrics(run_dir)[-1]
    assert 2 <= last["step"] < 20
    assert last["train/epoch"] > 0
