"""Correlation of similarities with scores of pairs, from a table through the command line."""

import json

import numpy as np
import pytest

from launcher.cli import app
from neobert.config import from_dict
from neobert.config.canonical import to_dict
from neobert.encoding import Encoder
from neobert.errors import ProjectError
from neobert.evaluation.similarity.files import read_scored_pairs

TABLE = 'sentence1\tsentence2\tscore\nthe "model\ta b c\t0.5\ntext\ttext text\t5\n\t\t\na\tthe model\t2\n'
USUAL = dict.fromkeys(("text", "positive", "scores"))


@pytest.mark.usefixtures("warm")
def test_spearman_is_that_of_the_vectors_of_the_folder(tmp_path, model_folder, monkeypatch, capsys):
    file = tmp_path / "sts.tsv"
    file.write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    words = ["evaluate", "similarity", str(model_folder), str(file), "--json", "--device", "cpu"]
    assert app.run(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(tmp_path.iterdir()) == before
    encoder = Encoder.load(model_folder, normalize=True)
    first, second = (
        encoder.encode(texts) for texts in (['the "model', "text", "a"], ["a b c", "text text", "the model"])
    )
    similar = (first * second).sum(1)
    ranks = similar.argsort().argsort()
    assert report["metrics"]["spearman"] == pytest.approx(np.corrcoef(ranks, [0, 2, 1])[0, 1])
    assert report["metrics"]["pearson"] == pytest.approx(np.corrcoef(similar, [0.5, 5, 2])[0, 1], abs=1e-6)
    assert report["pairs"] == 3


def test_a_table_without_a_header_line_is_named_as_such(tmp_path):
    file = tmp_path / "sts.tsv"
    file.write_text("5.000\tA plane is taking off.\tAn air plane is taking off.\n" * 2)
    with pytest.raises(ProjectError, match="none of the columns is named query") as caught:
        read_scored_pairs(file, USUAL, tmp_path)
    assert caught.value.hint.startswith("add a header line, as the first line seems to be a row; or set")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1\tsentence2\tscore\na\tb\t1\n", "has 1 pair with a score"),
        ("sentence1\tsentence2\tscore\na\tb\tgood\n", "score 'good' is not a finite number"),
        ("sentence1\tsentence2\na\tb\n", "none of the columns is named score"),
    ],
)
def test_what_is_no_table_of_scored_pairs_is_refused(tmp_path, text, message):
    file = tmp_path / "sts.tsv"
    file.write_text(text)
    with pytest.raises(ProjectError, match=message):
        read_scored_pairs(file, USUAL, tmp_path)


def test_columns_default_to_the_columns_of_the_run_that_the_table_has(tmp_path):
    config = {
        "task": "contrastive",
        "dataset": {"text_column": "q"},
        "contrastive": {"positive_column": "best", "score_column": "grade"},
    }
    run = to_dict(from_dict(config))
    run["trainer"] |= {"ema_decay": None}  # a key of an older release
    (tmp_path / "resolved.json").write_text(json.dumps(run))
    file = tmp_path / "pairs.csv"
    file.write_text("q,best,grade,answer\na,b,1,c\nd,e,2,f\n")
    assert read_scored_pairs(file, USUAL, tmp_path).rows == [
        {"text": "a", "positive": "b", "scores": 1.0},
        {"text": "d", "positive": "e", "scores": 2.0},
    ]
    named = read_scored_pairs(file, USUAL | {"positive": "answer"}, tmp_path)
    assert [row["positive"] for row in named.rows] == ["c", "f"]
    file.write_text("query,answer,score\na,b,1\nd,e,2\n")
    assert [row["positive"] for row in read_scored_pairs(file, USUAL, tmp_path).rows] == ["b", "e"]
