"""Retrieval on BEIR folders: readers, metrics against their definitions, search, continuation."""

import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import app
from neobert.encoding import Encoder
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.retrieval import ranking
from neobert.evaluation.retrieval.evaluate import evaluate_collection
from neobert.evaluation.retrieval.files import read_collection
from neobert.evaluation.retrieval.metrics import mean_metrics, query_metrics
from neobert.evaluation.retrieval.ranking import rank
from tests.refusals import refusal_of

CRANFIELD = os.environ.get("NEOBERT_CRANFIELD")
DOCUMENTS = {"d1": "the model reads", "d2": "a b c", "d3": "text text", "d4": "", "d5": "b b model"}
QUERIES = {"q1": "the model", "q2": "text", "q3": "nothing judged"}
JUDGED = [
    ("q1", "d1", 2),
    ("q1", "d5", 1),
    ("q2", "d3", 1),
    ("q2", "d1", 0),
    ("q9", "d1", 1),
    ("q2", "d9", 1),
]


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "beir"
    folder.mkdir()
    rows = [{"_id": name, "title": "", "text": text} for name, text in DOCUMENTS.items()]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in QUERIES.items())
    )
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in JUDGED)]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def score(beir: Path, model_folder: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(output: str = "corpus.npy", **settings: Any) -> dict[str, Any]:
        model = EmbeddingModel(folder=str(model_folder), device="cpu", **settings)
        return evaluate_collection(read_collection(beir), model, tmp_path / output, texts_per_shard=2)

    return run


def test_a_collection_keeps_judged_queries_and_counts_the_rest(beir):
    found = read_collection(beir)
    assert list(found.corpus) == list(DOCUMENTS)
    assert found.relevance == {"q1": {"d1": 2, "d5": 1}, "q2": {"d3": 1}}
    assert (found.num_unjudged, found.num_unknown) == (1, 2)


def test_a_query_does_not_find_itself(beir, score):
    """Queries of ArguAna are documents of its corpus; BEIR leaves each out of its own ranking."""
    corpus = {"same": "the model", "number": "the model reads"}
    rows = [json.dumps({"_id": name, "text": text}) for name, text in corpus.items()]
    (beir / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    rows = [json.dumps({"_id": name, "text": "the model"}) for name in corpus]
    (beir / "queries.jsonl").write_text("\n".join(rows))
    (beir / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nsame\tnumber\t1\nnumber\tnumber\t1\n")
    found = score()
    assert found["queries_in_corpus"] == 1, "an equal id of another text is a coincidence"
    assert found["metrics"]["mrr@10"] == (1 + 1 / 2) / 2
    assert found["metrics"]["recall@100"] == 1


def test_a_title_is_read_once(beir):
    rows = [
        {"_id": 1, "title": "On wings", "text": "On wings . they lift"},
        {"_id": 2, "title": "A", "text": "b"},
    ]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (beir / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t1\t1\n")
    assert list(read_collection(beir).corpus.values()) == ["On wings . they lift", "A b"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("qrels.tsv", None, "has no qrels.tsv or qrels/test.tsv"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td9\t1\n", "has no score above 0"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\thigh\n", "score high is not a whole number"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\n", "has 2 fields, but the header has 3"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0.5\n", "score 0.5 is not a whole number"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\tinf\n", "score inf is not a whole number"),
        ("qrels.tsv", "q1\t0\td1\nq1\t0\td2\n", "first line does not name the columns query-id, corpus-id"),
        ("qrels.tsv", "1\t1\t1\n", "first line does not name the columns"),
        ("qrels.tsv", "q1 0 d1 1\n", "first line does not name the columns"),
        ("qrels.tsv", "", "first line does not name the columns"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\n{"_id": "q1", "text": "b"}\n', "_id q1 is repeated"),
        ("queries.jsonl", '{"id": "q1"}\n', "the row has no _id or no text"),
    ],
)
def test_what_is_no_collection_is_refused(beir, file, content, message):
    (beir / file).unlink()
    if content is not None:
        (beir / file).write_text(content)
    with pytest.raises(ProjectError, match=message):
        read_collection(beir)


def test_metrics_of_a_ranking_by_hand():
    found = query_metrics(["x", "b", "a"], {"a": 2, "b": 1, "c": 1})
    ideal = 2 + 1 / math.log2(3) + 1 / 2
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 2 / 2) / ideal)
    assert found["mrr@10"] == 0.5
    assert found["map@100"] == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert found["recall@100"] == pytest.approx(2 / 3)


def test_metrics_look_no_further_than_their_depth():
    ranking = [f"x{number}" for number in range(10)] + ["a"]
    assert query_metrics(ranking, {"a": 1})["ndcg@10"] == query_metrics(ranking, {"a": 1})["mrr@10"] == 0
    assert query_metrics(ranking, {"a": 1})["map@100"] == pytest.approx(1 / 11)
    far = [f"x{number}" for number in range(100)] + ["a"]
    assert query_metrics(far, {"a": 1}) == dict.fromkeys(("ndcg@10", "mrr@10", "map@100", "recall@100"), 0.0)


@given(
    st.permutations(list("abcdefgh")),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 4), min_size=1),
)
def test_the_ideal_order_is_the_best(ranking, relevance):
    found = query_metrics(ranking, relevance)
    ideal = query_metrics(sorted(relevance, key=lambda name: -relevance[name]), relevance)
    assert all(0 <= found[name] <= ideal[name] + 1e-12 for name in found)
    assert ideal == {name: pytest.approx(1.0) for name in ideal}


def test_search_is_exact(monkeypatch):
    monkeypatch.setattr(ranking, "QUERIES_AT_ONCE", 3)
    draw = np.random.default_rng(0)
    queries, corpus = (draw.normal(size=(size, 8)).astype(np.float32) for size in (7, 300))
    queries, corpus = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, corpus))
    wanted = np.argsort(-(queries @ corpus.T), axis=1)[:, :101]
    names = {f"d{number}": f"text {number}" for number in range(300)}
    assert rank(queries, corpus, names, torch.device("cpu")) == [[f"d{n}" for n in row] for row in wanted]


def test_a_folder_is_scored_as_by_hand(score, model_folder):
    found = score()
    encoder = Encoder.load(model_folder, normalize=True)
    documents, queries = (encoder.encode(list(texts.values())) for texts in (DOCUMENTS, QUERIES))
    order = np.argsort(-(queries[:2] @ documents.T), axis=1)
    names = list(DOCUMENTS)
    rankings = {
        query: [names[index] for index in row] for query, row in zip(("q1", "q2"), order, strict=True)
    }
    wanted = mean_metrics(rankings, {"q1": {"d1": 2, "d5": 1}, "q2": {"d3": 1}})
    assert found["metrics"] == pytest.approx(wanted)
    assert (found["queries"], found["documents"], found["unjudged_queries"]) == (2, 5, 1)


def test_a_stopped_evaluation_encodes_only_what_is_missing(score, monkeypatch):
    right, encoded = Encoder.encode, []

    def encode(self, texts, *rest, **prompt):
        if len(encoded) == 3:  # the queries and two of three shards
            raise KeyboardInterrupt
        encoded.append(len(texts))
        return right(self, texts, *rest, **prompt)

    monkeypatch.setattr(Encoder, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        score(max_length=4)
    encoded.clear()
    found = score(max_length=4)
    assert encoded == [2, 1]
    monkeypatch.undo()
    again = score("other.npy", max_length=4)
    assert found["metrics"] == again["metrics"]
    assert found["truncated"] == again["truncated"] > 1, "of every session"


def test_embeddings_that_are_not_finite_are_not_ranked(score, model_folder, monkeypatch):
    """The order of documents whose similarity is NaN is arbitrary; it was scored."""
    right = Encoder._embed_run
    monkeypatch.setattr(Encoder, "_embed_run", lambda *arguments: right(*arguments) * float("nan"))
    with pytest.raises(ProjectError, match="the embeddings of 2 of 2 texts are NaN or infinite") as caught:
        score()
    assert (caught.value.exit_code, caught.value.place) == (EXIT_TRAINING_FAILED, str(model_folder))
    monkeypatch.undo()
    assert 0 <= score()["metrics"]["ndcg@10"] <= 1


def test_prompts_that_the_folder_declares_are_the_prefixes(score, model_folder):
    stated = score("stated.npy", query_prefix="a ", document_prefix="b ")
    content = {"prompts": {"query": "a ", "document": "b "}, "default_prompt_name": None}
    (model_folder / "config_sentence_transformers.json").write_text(json.dumps(content))
    declared, without = score("declared.npy"), score("without.npy", query_prefix="", document_prefix="")
    assert (declared["query_prefix"], declared["document_prefix"]) == ("a ", "b ")
    assert declared["summary"] == stated["summary"]
    assert (without["query_prefix"], without["document_prefix"]) == ("", "")


@pytest.mark.parametrize("prefix", ["document_prefix", "query_prefix"])
def test_results_of_another_prefix_are_not_overwritten(score, prefix):
    score()
    refusal_of(score, "encode-parts", 'prefix changed from "" to "text "', **{prefix: "text "})


@pytest.mark.parametrize(
    ("file", "more", "changed"),
    [
        ("queries.jsonl", '{"_id": "q4", "text": "b"}\n', "queries changed"),
        ("qrels.tsv", "q2\td5\t1\n", "judgements changed"),
    ],
)
def test_results_of_other_queries_are_not_overwritten(beir, score, file, more, changed):
    score()
    (beir / file).write_text((beir / file).read_text() + more)
    refusal_of(score, "encode-parts", changed)


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_command_writes_a_result_and_a_table(model_folder, beir, tmp_path, capsys):
    output = tmp_path / "out"
    words = ["evaluate", "retrieval", model_folder, beir, "-o", output, "--device", "cpu"]
    assert app.run([str(word) for word in words]) == 0
    table = capsys.readouterr().out
    result = json.loads((output / "retrieval.json").read_text())
    assert f"{100 * result['metrics']['ndcg@10']:.1f}" in table
    assert "2 queries, 5 documents" in table


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("relevant", "ndcg"), [("d00", 0.0), ("d19", 1.0)])
def test_equal_scores_are_ordered_by_id_whatever_the_order_of_the_file(
    model_folder, beir, tmp_path, is_reversed, relevant, ndcg
):
    """Copies of a text were ranked by the order of the file: trec_eval orders them by id, descending."""
    rows = [json.dumps({"_id": f"d{number:02}", "text": "the model reads"}) for number in range(20)]
    (beir / "corpus.jsonl.gz").write_bytes(
        gzip.compress("\n".join(rows[:: -1 if is_reversed else 1]).encode())
    )
    (beir / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\nq1\t{relevant}\t1.0\n")
    words = ["evaluate", "retrieval", model_folder, beir, "-o", tmp_path / "out", "--device", "cpu"]
    assert app.run([str(word) for word in words]) == 0
    found = json.loads((tmp_path / "out" / "retrieval.json").read_text())["metrics"]
    assert (found["ndcg@10"], found["recall@100"]) == (ndcg, 1.0)


def test_copies_at_the_depth_of_the_search_are_chosen_by_id():
    corpus = {f"d{number:03}": "copy" if number >= 100 else f"text {number}" for number in range(300)}
    embeddings = np.stack([[1.0, 0.0]] * 100 + [[0.0, 1.0]] * 200).astype(np.float32)
    (found,) = rank(embeddings[:1], embeddings, corpus, torch.device("cpu"))
    assert found == [*(f"d{number:03}" for number in range(99, -1, -1)), "d299"]


def test_a_pair_with_two_scores_is_refused_with_both_lines(beir):
    file = beir / "qrels.tsv"
    file.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td1\t1.0\nq1\td1\t0\n")
    with pytest.raises(ProjectError) as caught:
        read_collection(beir)
    assert caught.value.place == f"{file}:4"
    assert caught.value.message == f"query q1 and document d1 have score 0 here, and 1 in {file}:2"
    file.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td1\t1.0\n")
    assert read_collection(beir).relevance == {"q1": {"d1": 1}}


@pytest.mark.skipif(CRANFIELD is None, reason="NEOBERT_CRANFIELD names the BEIR folder of Cranfield")
def test_cranfield_is_complete():
    found = read_collection(Path(str(CRANFIELD)))
    assert (len(found.corpus), len(found.queries), found.num_unknown) == (1_400, 225, 0)
    assert sum(map(len, found.relevance.values())) == 1_612
