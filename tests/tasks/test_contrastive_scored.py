"""Rows with scores: read or refused with a sentence, trained on, and evaluated by their correlation."""

import random
from pathlib import Path

import numpy as np
import pytest

from neobert.config import from_dict
from neobert.data.sources.text_files import read_rows
from neobert.data.store.prepare import prepare
from neobert.errors import ProjectError
from neobert.tasks.contrastive.inferred import infer
from neobert.tasks.contrastive.rows import row_negatives
from neobert.tasks.specs import reported_metrics, spec_of
from tests.pairs import COLOURS, THINGS, pairs
from tests.tasks.test_contrastive import BERT, options, read_by_sentence_transformers, write


def scored_pairs(count: int, seed: int) -> list[dict[str, object]]:
    """Two texts of a colour and a thing; the score is the number that both share."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        one, other = ((draw.choice(COLOURS), draw.choice(THINGS)) for _ in range(2))
        if draw.random() < 0.5:
            other = (one[0], draw.choice([one[1], other[1]]))
        score = float(sum(a == b for a, b in zip(one, other, strict=True)))
        found.append(
            {"sentence1": f"a {' '.join(one)}", "sentence2": f"the {' '.join(other)}", "score": score}
        )
    return found


def taught(count: int, seed: int) -> list[dict[str, object]]:
    return [row | {"scores": [1.0, 0.3]} for row in pairs(count, seed)]


# --- rows


def read(path: Path, **section):
    rows = spec_of(config := from_dict(options(path, section))).rows(config)
    return [(row["positive"], row_negatives(row), row["scores"]) for row in read_rows(path, rows)]


@pytest.mark.parametrize(
    ("name", "text", "column", "expected"),
    [
        ("a.csv", "sentence1,sentence2,score\nq,p,4.5\n", "score", ("p", [], (4.5,))),
        ("a.tsv", "query\tdocument\tsimilarity\nq\tp\t1\n", "similarity", ("p", [], (1.0,))),
        ("a.jsonl", '{"query": "q", "positive": "p", "label": [0]}\n', "label", ("p", [], (0.0,))),
        (
            "a.jsonl",
            '{"query": "q", "positive": "p", "negatives": ["n", "", "m"], "scores": [3, 2, 9, 1]}\n',
            "scores",
            ("p", ["n", "m"], (3.0, 2.0, 1.0)),
        ),
        ("a.jsonl", '{"query": "", "positive": "p", "score": null}\n', "score", ("p", [], ())),
    ],
)
def test_scores_are_read_with_their_documents(tmp_path, name, text, column, expected):
    path = tmp_path / name
    path.write_text(text)
    assert read(path, score_column=column, max_negatives=3) == [expected]


@pytest.mark.parametrize(
    ("row", "message", "hint"),
    [
        ({"score": None}, "the row has no score", "remove the row, or set contrastive.score_column"),
        ({"score": "high"}, "score 'high' is not a finite number", "contrastive.score_column"),
        ({"score": [1, float("nan")]}, "the row has no score", "remove the row"),
        ({"score": {"a": 1}}, "a score is an object with keys, not a number", "correct the row"),
        ({"score": 1, "negative": "n"}, "1 score for 2 documents", "score of the positive and of each"),
        ({"score": [3, 2, 1], "negative": "n"}, "3 scores for 2 documents", "max_negatives to 2"),
        ({"score": [3, 2], "negative": [" "]}, "no negative is read", "remove the row"),
        ({"other": 1}, "there is no column 'score'", "set contrastive.score_column to one of"),
    ],
)
def test_scores_that_do_not_fit_are_named(tmp_path, row, message, hint):
    path = write(tmp_path / "a.jsonl", [{"query": "q", "positive": "p", **row}])
    with pytest.raises(ProjectError, match=r"a\.jsonl") as refused:
        read(path, score_column="score")
    assert message in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("score", [{}, {"score": False}, {"score": "True"}], ids=str)
def test_a_column_of_scores_that_is_not_read_is_named(tmp_path, caplog, score):
    """Numbers, or truth values: without them, bad pairs are learned as good ones."""
    path = write(tmp_path / "unread.jsonl", [{**row, **score} for row in scored_pairs(2, 0)])
    read(path)
    read(path)
    (message,) = caplog.messages
    assert "column score is not read" in message
    assert "set contrastive.score_column" in message


@pytest.mark.parametrize(
    ("row", "column", "negatives"),
    [
        ({"score": 2.5}, "score", 0),
        ({"label": 1}, "label", 0),
        ({"negative": "n", "scores": [1.5, 0.5]}, "scores", 1),
        ({"label": "entailment"}, None, 0),
        ({"negative": "n", "score": 2.5}, None, 1),
    ],
)
def test_the_column_of_scores_is_inferred(tmp_path, row, column, negatives):
    path = write(tmp_path / "a.jsonl", [{"query": f"a query {n}", "positive": "p", **row} for n in range(4)])
    keys = infer(path).keys
    assert keys.get("contrastive.score_column") == column
    assert keys["contrastive.max_negatives"] == negatives


def test_a_missing_table_of_scored_pairs_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", pairs(40, 0))
    with pytest.raises(ProjectError, match=r"none\.csv.*is not a file"):
        prepare(from_dict(options(path, {"scored_eval_path": str(tmp_path / "none.csv")})))


# --- runs


@pytest.mark.parametrize("kind", ["pairs", "teacher"])
def test_fifty_steps_are_read_by_sentence_transformers(make_run, run, metrics, tmp_path, kind):
    """Correlations are those of the vectors that sentence-transformers reads, and the run learns."""
    evaluation = scored_pairs(60, 7)
    table = write(tmp_path / "evaluation.jsonl", evaluation)
    rows, section = {
        "pairs": (scored_pairs(300, 1), {"score_column": "score", "max_negatives": 0}),
        "teacher": (taught(300, 1), {"score_column": "scores", "teacher_temperature": 0.2}),
    }[kind]
    section |= {"scored_eval_path": str(table), "matryoshka_dims": [8], "query_prompt": "q: "}
    settings = options(write(tmp_path / "rows.jsonl", rows), section, model=BERT)
    trainer = {"max_steps": 50, "eval_steps": 25, "save_steps": 50}
    folder = make_run(**settings, optimizer={"lr": 3e-3}, trainer=trainer)
    assert run(folder) == 0
    lines = [line for line in metrics(folder) if "eval/spearman" in line]
    first, last = lines[0], lines[-1]
    assert last["eval/loss"] < first["eval/loss"]
    assert kind == "teacher" or last["eval/spearman"] > first["eval/spearman"]
    assert ("eval/mrr" in last) == (kind == "teacher")
    checkpoint = folder / "checkpoints" / "50"
    texts = [f"q: {row['sentence1']}" for row in evaluation] + [row["sentence2"] for row in evaluation]
    vectors = read_by_sentence_transformers(checkpoint, 16, texts)
    similar = (vectors[:60] * vectors[60:]).sum(1)
    scores = [row["score"] for row in evaluation]
    if kind == "teacher":  # the evaluation of pairs has held-out ones, too
        assert last["eval/pearson"] == pytest.approx(np.corrcoef(similar, scores)[0, 1], abs=1e-5)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize(
    ("section", "dataset", "names"),
    [
        ({}, {}, ["loss", "accuracy", "mrr"]),
        ({"score_column": "s", "max_negatives": 0}, {}, ["loss", "pearson", "spearman"]),
        ({"score_column": "s"}, {}, ["loss", "accuracy", "mrr"]),
        ({"scored_eval_path": "p"}, {}, ["loss", "accuracy", "mrr", "pearson", "spearman"]),
        (
            {"score_column": "s"},
            {"path": None, "mixture": [{"path": "a"}]},
            ["loss", "accuracy", "mrr", "pearson", "spearman"],
        ),
    ],
)
def test_metrics_are_those_of_the_rows(section, dataset, names):
    config = from_dict(options(Path("a.jsonl"), section, dataset=dataset))
    assert [each.label for each in reported_metrics(config)] == names
