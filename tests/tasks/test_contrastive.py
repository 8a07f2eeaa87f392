"""Pairs: from tables of many forms to a model that sentence-transformers loads with its prompts."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from neobert.config import from_dict
from neobert.data.examples import load_examples
from neobert.data.sources.text_files import read_rows
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.encoding import GROUP
from neobert.errors import ProjectError
from neobert.export.reference import make_reference
from neobert.export.source import open_source
from neobert.hub_names import snapshot_folder
from neobert.model.configuration_neobert import NeoBERTConfig
from neobert.model.encoder import NeoBERT
from neobert.tasks.contrastive.rows import row_negatives
from neobert.tasks.specs import spec_of
from tests.pairs import pairs
from tests.tasks.conftest import options_of
from tests.validators.judging import found as judged
from tests.validators.judging import run_of


def write(path: Path, rows) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", pairs(300, 1))


options = partial(options_of, "contrastive")


# --- rows


def read(path: Path, **section):
    rows = spec_of(config := from_dict(options(path, section))).rows(config)
    return [(row["text"], row["positive"], row_negatives(row)) for row in read_rows(path, rows)]


@pytest.mark.parametrize(
    ("name", "text", "negatives"),
    [
        ("a.csv", "anchor,positive,negative\nq,p,n\n", ["n"]),
        ("a.tsv", "question\tanswer\nq\tp\n", []),
        ("a.csv", "sentence1,sentence2,score\nq,p,1\n", []),
        ("a.jsonl", '{"query": "q", "corpus": "p", "negative": ["n", "m"]}\n', ["n", "m"]),
        ("a.jsonl", '{"text": "q", "positive": "p", "negative_1": "n", "negative_2": "m"}\n', ["n", "m"]),
        ("a.jsonl", '{"query": "q", "document": "p", "negatives": null}\n', []),
        ("a.jsonl", '{"query": "q", "document": "p", "negatives": ["n", " ", "n", "m", "k"]}\n', ["n", "m"]),
    ],
)
def test_the_usual_columns_are_read(tmp_path, name, text, negatives):
    path = tmp_path / name
    path.write_text(text)
    assert read(path, max_negatives=2) == [("q", "p", negatives)]
    assert read(path, max_negatives=0) == [("q", "p", [])]


def test_rows_of_parquet_and_rows_without_a_negative_are_read(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"anchor": "q", "pos": "p", "neg": "n"}, {"anchor": "r", "pos": "s", "neg": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    expected = [("q", "p", ["n"]), ("r", "s", [])]
    assert read(tmp_path / "a.parquet") == expected
    first, second = ({key: value for key, value in row.items() if value} for row in rows)
    assert read(write(tmp_path / "a.jsonl", [first, second])) == expected
    assert read(write(tmp_path / "b.jsonl", [second, first])) == expected[::-1]


def test_named_columns_are_read(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"q": "q", "p": "p", "x": "n", "y": "m", "positive": "not this"}])
    config = from_dict(
        options(
            path,
            {"positive_column": "p", "negative_columns": ["y", "x"], "max_negatives": 2},
            dataset={"text_column": "q"},
        )
    )
    (row,) = read_rows(path, spec_of(config).rows(config))
    assert (row["text"], row["positive"], row_negatives(row)) == ("q", "p", ["m", "n"])


@pytest.mark.parametrize(
    ("row", "section", "message", "hint"),
    [
        ({"query": "q", "other": "p"}, {}, "none of the columns is named positive", "positive_column"),
        ({"query": "q", "answer": "p", "passage": "r"}, {}, "passage, answer", "positive_column"),
        ({"query": "q", "positive": 3}, {}, "'positive' holds a number", "positive_column"),
        (
            {"query": "q", "positive": "p", "negative": [1]},
            {},
            "'negative' holds a number",
            "negative_columns",
        ),
        ({"query": "q", "positive": "p"}, {"negative_columns": ["n"]}, "no column 'n'", "negative_columns"),
    ],
)
def test_a_source_whose_columns_do_not_fit_is_named(tmp_path, row, section, message, hint):
    good = write(tmp_path / "good.jsonl", [{"query": "q", "positive": "p", "n": "m"}])
    bad = write(tmp_path / "bad.jsonl", [row])
    sources = [{"path": str(good)}, {"path": str(bad)}]
    dataset = {"path": None, "mixture": sources, "eval_samples": None}
    with pytest.raises(ProjectError, match=r"bad\.jsonl") as refused:
        prepare(from_dict(options(good, section, dataset=dataset)))
    assert refused.value.code == "DAT011"
    assert message in refused.value.message
    assert hint in refused.value.hint


# --- tokens


def encoder_of(path, section=None, **dataset):
    config = from_dict(options(path, section, dataset={"max_seq_length": 8, **dataset}))
    tokenizer = prepare(config).tokenizer
    return load_examples(config).encoder(tokenizer), tokenizer


def test_texts_have_prompts_as_sentence_transformers_adds_them(file):
    prompts = {"query_prompt": "where is the ", "document_prompt": "red "}
    encoder, tokenizer = encoder_of(file, prompts, max_seq_length=32)
    encoded = encoder.encode([{"text": "stone", "positive": "stone", "negatives": "bird", "num_left_out": 0}])
    texts = np.split(encoded.tokens, np.cumsum(encoded.lengths)[:-1])
    expected = tokenizer.tokenizer(["where is the stone", "red stone", "red bird"])["input_ids"]
    assert [each.tolist() for each in texts] == expected
    assert encoded.columns[GROUP].tolist() == [0, 1, 2]


def test_a_text_that_spells_a_special_token_is_plain_text(file):
    encoder, tokenizer = encoder_of(file, max_seq_length=32)
    encoded = encoder.encode(
        [{"text": "a [SEP] b", "positive": "[MASK]", "negatives": "", "num_left_out": 0}]
    )
    separators = encoded.tokens == tokenizer.tokenizer.sep_token_id
    assert separators.sum() == encoded.counts.segments == 2
    assert tokenizer.mask_id not in encoded.tokens


def test_each_positive_of_a_list_is_a_pair_with_the_negatives_of_its_row(file, tmp_path):
    """The rows of FlagEmbedding; a positive that is empty or repeated is left out."""
    rows = [
        {"query": "q", "pos": ["one", "two", " ", "one"], "neg": ["no", "nay"]},
        {"query": "r", "pos": ["three"], "neg": []},
        {"query": "s", "pos": [], "neg": ["never"]},
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    encoder, tokenizer = encoder_of(file, max_seq_length=32)
    config = from_dict(options(path, {"max_negatives": 2}))
    encoded = encoder.encode(read_rows(path, spec_of(config).rows(config)))
    texts = np.split(encoded.tokens, np.cumsum(encoded.lengths)[:-1])
    expected = ["q", "one", "no", "nay", "q", "two", "no", "nay", "r", "three"]
    assert [each.tolist() for each in texts] == tokenizer.tokenizer(expected)["input_ids"]
    assert encoded.columns[GROUP].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert (encoded.counts.documents, encoded.counts.left_out["rows_of_one_text"]) == (3, 1)


def test_one_score_for_several_positives_is_refused(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"query": "q", "pos": ["one", "two"], "score": 1}])
    with pytest.raises(ProjectError, match=r"rows\.jsonl:1: the row has 2 positives, but a score belongs"):
        read(path, score_column="score")


ROWS = [
    {"text": "", "positive": "red stone", "negatives": "", "num_left_out": 5},
    {"text": " ", "positive": "", "negatives": "", "num_left_out": 0},
    {"text": "red stone", "positive": "blue bird " * 8, "negatives": "", "num_left_out": 2},
    {"text": "red stone", "positive": "blue bird", "negatives": "blue bird " * 8, "num_left_out": 1},
]


@pytest.mark.parametrize(
    ("fate", "places", "counts"),
    [("truncate", [0, 1, 0, 1, 2], (1, 1, 2, 0)), ("drop", [0, 1], (1, 1, 0, 1))],
)
def test_rows_that_are_no_pair_and_long_texts_are_counted(file, fate, places, counts):
    encoder, _ = encoder_of(file, long_documents=fate)
    encoded = encoder.encode(ROWS)
    assert encoded.columns[GROUP].tolist() == places
    assert encoded.lengths.max() <= 8
    found = encoded.counts
    assert (found.empty, found.left_out["rows_of_one_text"], found.truncated, found.dropped) == counts
    assert found.left_out["negatives"] == 3
    assert found.documents == 4


def test_a_text_is_not_split(file):
    with pytest.raises(ProjectError, match="long_documents is split, but each text has one vector"):
        prepare(from_dict(options(file, dataset={"long_documents": "split"})))


# --- runs


BERT = {
    "type": "hf",
    "architecture": "bert",
    "intermediate_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 1,
}


LIMIT, COMMIT = "sentence_bert_config.json", "a" * 40


def read_by_sentence_transformers(folder: Path, width: int | None, texts: list[str]) -> np.ndarray:
    """Return the first components of vectors, all without a width."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), truncate_dim=width, trust_remote_code=True, device="cpu")
    vectors: np.ndarray = model.encode(texts, prompt="", show_progress_bar=False)
    return vectors


@pytest.mark.parametrize(
    ("model", "pooling", "more"),
    [({}, "cls", {"masked_lm_weight": 0.1}), (BERT, "avg", {"matryoshka_dims": [8]})],
    ids=["neobert with masks", "bert"],
)
def test_a_run_learns_and_sentence_transformers_loads_its_checkpoint(
    make_run, file, run, metrics, model, pooling, more
):
    trainer = {"max_steps": 40, "eval_steps": 20, "save_steps": 40}
    section = {"query_prompt": "query: ", "pooling": pooling, **more}
    folder = make_run(**options(file, section, model=model), trainer=trainer)
    assert run(folder) == 0
    lines = metrics(folder)
    evaluated = [line for line in lines if "eval/mrr" in line]
    assert evaluated[-1]["eval/mrr"] > evaluated[0]["eval/mrr"] + 0.1
    if "masked_lm_weight" in more:
        assert evaluated[-1]["eval/mlm_loss"] < evaluated[0]["eval/mlm_loss"]
    trained = [line for line in lines if "train/pairs_per_step" in line]
    assert all(line["train/negatives_per_query"] > line["train/pairs_per_step"] for line in trained)
    checkpoint = folder / "checkpoints" / "40"
    prompts = json.loads((checkpoint / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == {"query": "query: "}
    read_as = AutoTokenizer.from_pretrained(checkpoint)
    assert read_as("a [SEP] b")["input_ids"].count(read_as.sep_token_id) == 1
    reference = make_reference(open_source([checkpoint], None))
    vectors = reference.outputs["pooled"]
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for width in (None, *more.get("matryoshka_dims", ())):
        found = read_by_sentence_transformers(checkpoint, width, reference.texts)
        np.testing.assert_allclose(found, expected[:, :width], atol=1e-5)


def test_short_pairs_do_not_shorten_what_a_model_reads(make_run, file, run, tmp_path, monkeypatch):
    def limit(name, model, length):
        sections = options(file, model=model, dataset={"max_seq_length": length})
        folder = make_run(name, **sections, trainer={"max_steps": 2, "save_steps": 2})
        assert run(folder) == 0
        return json.loads((folder / "checkpoints" / "2" / LIMIT).read_text())["max_seq_length"], folder

    of_random_weights, first = limit("first", BERT | {"max_position_embeddings": 32}, 24)
    assert of_random_weights == 24
    folder = first / "checkpoints" / "2"
    (folder / "checkpoint.json").unlink()  # its digests end with the edit
    declared = folder / LIMIT
    declared.write_text('{"max_seq_length": 16}')
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = snapshot_folder("owner/name", COMMIT)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(folder)
    of_hub = {"type": "hf", "pretrained_checkpoint": "owner/name", "revision": COMMIT}
    assert limit("declared", of_hub, 8)[0] == 16
    declared.unlink()
    (folder / "modules.json").unlink()  # with it, the limit of the tokenizer is one of texts
    weights = {"type": "hf", "pretrained_checkpoint": str(folder)}
    assert limit("undeclared", weights, 8)[0] == 32, "the positions of the model"


MASKED = "dropout and masks"


@pytest.mark.parametrize("kind", ["one source", "two sources", MASKED])
def test_a_killed_run_continues_bit_for_bit(killed_run, file, metrics, kind):
    sections = options(file)
    if kind == MASKED:
        section = {"positives": "dropout", "masked_lm_weight": 0.1}
        sections = options(file, section, model={"dropout": 0.1})
    if kind == "two sources":
        scores = (row | {"negative": None, "score": number % 6} for number, row in enumerate(pairs(200, 2)))
        mixture = [{"path": str(file)}, {"path": str(write(file.parent / "scored.jsonl", scores))}]
        dataset = {"path": None, "mixture": mixture, "eval_samples": 24}
        sections = options(file, {"score_column": "score"}, dataset=dataset)
    last = metrics(killed_run(9, **sections))[-1]
    assert ("eval/spearman" in last, "eval/mlm_loss" in last) == (kind == "two sources", kind == MASKED)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["contrastive.matryoshka_dims=[8,768]"], "matryoshka_dims has 768, but a vector has 768 components"),
        (["contrastive.negative_columns=[a,b]"], "negative_columns has 2 columns, but max_negatives is 1"),
        (["contrastive.positives=dropout"], "positives is dropout, but the model has no dropout"),
        (
            ["contrastive.positives=dropout", "model.dropout=0.1", "contrastive.score_column=s"],
            "score_column is not read, because positives is dropout",
        ),
        (["contrastive.positives=dropout", "model.dropout=0.1"], ""),
    ],
)
def test_contradictions_are_named(settings, problem):
    run = run_of("task=contrastive", "dataset.long_documents=truncate", *settings)
    findings = [each.message for each in judged("TSK005", run)]
    assert len(findings) == bool(problem)
    assert all(problem in each for each in findings)


# --- unsupervised: a text is its own document


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_each_text_is_its_own_document(tmp_path, name):
    texts = [f"a text of {number} words" for number in range(60)]
    path = write(tmp_path / name, [{"text": each} for each in texts])
    if name == "a.txt":
        path.write_text("\n\n".join(texts))
    small = {"model": {"dropout": 0.1}, "dataset": {"max_seq_length": 16}}
    config = from_dict(
        options(path, {"positives": "dropout"}, **small, trainer={"per_device_train_batch_size": 4})
    )
    store = prepare(config).train
    assert store.columns[GROUP].tolist()[:4] == [0, 1, 0, 1]
    first, second, third = (store.tokens[start:stop].tolist() for start, stop in pairwise(store.offsets[:4]))
    assert first == second != third


def test_dropout_of_the_blocks_is_that_of_training_alone():
    config = NeoBERTConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        hidden_dropout_prob=0.1,
    )  # fmt: skip
    model, ids = NeoBERT(config), torch.arange(12)[None]
    one, other = (model.train()(ids).last_hidden_state for _ in range(2))
    assert not torch.equal(one, other)
    one, other = (model.eval()(ids).last_hidden_state for _ in range(2))
    assert torch.equal(one, other)


# --- texts that occur elsewhere


def prepared(file, **dataset):
    data = {"path": None, "eval_samples": None, "max_seq_length": 32} | dataset
    return prepare(from_dict(options(file, {"max_negatives": 0}, dataset=data))).report


def test_texts_of_the_evaluation_in_other_training_pairs_are_counted(tmp_path):
    rows = pairs(40, 1)
    held_out = [
        {"query": "a new query", "positive": rows[0]["positive"].upper()},
        {"query": rows[1]["positive"], "positive": "a new document"},
        {"query": "another query", "positive": "another document"},
    ]
    folder = tmp_path / "splits"
    folder.mkdir()
    write(folder / "train.jsonl", rows)
    write(folder / "validation.jsonl", held_out)
    report = prepared(tmp_path / "x", path=str(folder))
    assert report["eval"]["copies_in_training"] == 0
    assert report["eval"]["texts_in_training"] == 2


def test_texts_of_another_source_are_counted(tmp_path):
    one = [{"query": f"query {number}", "positive": f"document {number}"} for number in range(60)]
    other = [{"query": f"question {number}", "positive": f"answer {number}"} for number in range(60)]
    other[0]["query"], other[1]["positive"] = one[2]["positive"], one[3]["query"].upper()
    files = [write(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", one), ("b", other))]
    train = prepared(tmp_path / "x", mixture=[{"path": str(file)} for file in files])["train"]
    assert (train["texts_of_other_sources"], train["texts_compared"]) == (4, 120)
