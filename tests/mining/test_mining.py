"""Hard negatives: equal to those of sentence-transformers, without planted copies and answers."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import from_dict, to_dict
from neobert.errors import ProjectError
from neobert.mining.job import run
from neobert.mining.negatives import choose_negatives
from neobert.mining.pairs import Pairs
from neobert.mining.request import Request

WORDS = ["the", "model", "reads", "text", "a", "b", "c"]
TEXTS = [" ".join(words) for words in itertools.product(WORDS, WORDS, WORDS[:2])]
CPU = torch.device("cpu")


@pytest.fixture
def mine(tmp_path, model_folder):
    def write(rows, **settings):
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        output = tmp_path / "triples.jsonl"
        pairs = str(tmp_path / "pairs.jsonl")
        report = run(Request(folder=str(model_folder), pairs=pairs, output=str(output), **settings))
        return report, [json.loads(line) for line in output.read_text().splitlines()]

    return write


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_negatives_are_those_of_sentence_transformers(mine, model_folder):
    import datasets
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    rows = [{"query": TEXTS[n], "positive": TEXTS[n + 40]} for n in range(30)]
    rows += [{"query": TEXTS[n], "positive": TEXTS[n + 45]} for n in range(5)]  # a second answer
    peer = SentenceTransformer(str(model_folder), trust_remote_code=True, device="cpu")
    wanted = mine_hard_negatives(
        datasets.Dataset.from_list(rows), peer, num_negatives=2, relative_margin=0.05, range_max=len(rows),
        output_format="n-tuple", verbose=False,
    )  # fmt: skip
    report, found = mine(rows, negatives=2)
    key = itemgetter_of("query", "positive", "negative_1", "negative_2")
    assert {tuple(row) for row in found} == {("query", "positive", "negative_1", "negative_2")}
    complete = [row for row in found if row["negative_2"] is not None]
    assert sorted(map(key, complete)) == sorted(map(key, wanted))
    assert len(complete) > 20
    assert (report["pairs"], report["queries"]) == (35, 30)


def itemgetter_of(*names):
    return lambda row: tuple(row[name] for name in names)


def test_planted_copies_and_answers_are_not_negatives(mine):
    rows = [
        {"query": "the model", "positive": "a b c"},
        {"query": "The  Model", "positive": "reads text"},  # another answer of the same query
        {"query": "the model", "positive": "A B  C"},  # a copy of the first row
        {"query": "reads", "positive": "the MODEL"},  # a document that is the first query itself
        {"query": "text", "positive": "c c c"},
        {"query": "", "positive": "c"},
    ]
    report, found = mine(rows, negatives=5, max_share=1.0)
    by_pair = {(row["query"], row["positive"]): {*list(row.values())[2:]} - {None} for row in found}
    assert by_pair["the model", "a b c"] == by_pair["the model", "reads text"] <= {"c c c"}
    assert (report["copies_removed"], report["rows_without_a_text"], report["documents"]) == (1, 1, 4)


def vectors(count, seed):
    drawn = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@given(st.integers(2, 40), st.integers(1, 8), st.integers(1, 4), st.sampled_from([0.5, 0.95, 1.0]))
def test_negatives_are_the_closest_of_those_that_are_allowed(documents, queries, most, share):
    query_vectors, document_vectors = vectors(queries, 1), vectors(documents, documents)
    answers = [[place % documents, (3 * place + 1) % documents] for place in range(queries)]
    excluded = [{*rows, (5 * place) % documents} for place, rows in enumerate(answers)]
    found = choose_negatives(query_vectors, document_vectors, answers, excluded, most, share, CPU)
    too_close = 0
    for place, rows in enumerate(found.rows):
        scores = document_vectors @ query_vectors[place]
        lowest = scores[answers[place]].min()
        ceiling = lowest - abs(lowest) * (1 - share)
        order = [row for row in np.argsort(-scores, kind="stable") if row not in excluded[place]]
        assert rows == [row for row in order if scores[row] <= ceiling][:most]
        too_close += sum(scores[row] > ceiling for row in order[:most])
    assert found.num_too_close == too_close


def test_further_documents_may_be_negatives(mine, tmp_path):
    (tmp_path / "more.txt").write_text("text text\n\nA b C\nc b a\n")
    rows = [{"question": "the model", "answer": "a b c"}]
    report, found = mine(rows, corpus=str(tmp_path / "more.txt"), negatives=9, max_share=1.0)
    assert report["documents"] == 3
    assert {*list(found[0].values())[2:]} - {None} <= {"text text", "c b a"}


def test_pairs_that_cannot_be_read_are_refused(mine, tmp_path):
    with pytest.raises(ProjectError, match="the file has no pairs"):
        mine([{"query": "", "positive": "a"}])
    with pytest.raises(ProjectError, match=r"none of the columns is named positive, pos, .*") as caught:
        mine([{"query": "a", "other": "a"}])
    assert "--positive-column" in caught.value.hint


def test_a_list_of_documents_is_a_pair_each(mine):
    rows = [
        {"query": "the model", "positive": ["a b c", "", "reads text", "A b C"]},
        {"query": "reads", "positive": "c c c"},
        {"query": "text", "positive": []},
    ]
    report, found = mine(rows)
    pairs = [(row["query"], row["positive"]) for row in found]
    assert pairs == [("the model", "a b c"), ("the model", "reads text"), ("reads", "c c c")]
    assert (report["rows"], report["rows_without_a_text"], report["copies_removed"]) == (3, 1, 1)
    with pytest.raises(ProjectError, match="column 'positive' holds a number, not text") as caught:
        mine([{"query": "a", "positive": [1]}])
    assert caught.value.hint == "set --positive-column to a column of strings"


def test_columns_are_those_of_the_run_where_the_table_has_them(mine, model_folder):
    config = {
        "task": "contrastive",
        "dataset": {"text_column": "q"},
        "contrastive": {"positive_column": "best"},
    }
    run = model_folder / "resolved.json"
    run.write_text(json.dumps(to_dict(from_dict(config))))
    row = {"q": "the model", "best": "a b c", "answer": "text"}
    assert mine([row])[1][0]["positive"] == "a b c"
    assert mine([row], positive_column="answer")[1][0]["positive"] == "text"
    assert mine([{"query": "the model", "answer": "text"}])[1][0]["positive"] == "text"


def test_a_row_of_pairs_is_counted_once():
    pairs = Pairs()
    for query, document in (("a", "b"), ("a", "B "), ("A", "c"), ("d", "b")):
        pairs.add(query, [document])
    assert (pairs.answers, pairs.num_copies, pairs.documents.texts) == ([[0, 1], [0]], 1, ["b", "c"])
    assert pairs.excluded_documents() == [{0, 1}, {0}]
