"""The mteb suite: every kind of task on built-in data, estimates and averages."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launcher.cli import app
from launcher.commands import evaluation
from neobert.encoding import Encoder
from neobert.evaluation.embedder import embedder_identity, load_embedder
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.mteb_suite.__main__ import evaluate
from neobert.evaluation.mteb_suite.summary import (
    averages,
    estimated_seconds,
    num_characters,
    revision_digest,
)


def test_without_mteb_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Exception, match="mteb is not installed") as refusal:
        evaluate({})
    assert refusal.value.hint == "pip install 'mteb>=2.26'"


ANSWER = {
    "scores": {"A": 0.5, "B": 0.25},
    "types": {"STS": 0.5, "Retrieval": 0.25},
    "mean_of_tasks": 0.375,
    "mean_of_types": 0.375,
    "missing": ["C"],
    "failed": {"C": "no connection"},
}


def test_the_command_prints_averages(model_folder, tmp_path, capsys, monkeypatch):
    requests = []
    monkeypatch.setattr(
        evaluation, "run_json_child", lambda _, content, **__: requests.append(content) or ANSWER
    )
    words = ["evaluate", "mteb", str(model_folder), "--tasks", "A,B,C", "-o", str(tmp_path / "out")]
    assert app.run(words) == 1
    assert requests[0]["tasks"] == ["A", "B", "C"]
    out = capsys.readouterr().out
    assert "37.5" in out
    assert "C: no connection" in out
    assert json.loads((tmp_path / "out" / "mteb.json").read_text()) == {"schema_version": 1, **ANSWER}
    assert app.run(["evaluate", "mteb", str(model_folder), "-o", str(tmp_path / "out")]) == 2


def test_the_sizes_of_texts_are_added_up():
    nested = {"text_statistics": {"total_text_length": 30}, "b": {"total_text_length": 70}, "n": 5}
    assert (num_characters(nested), num_characters({"number_of_characters": 9, **nested})) == (
        100,
        9,
    )
    statistics = {
        "A": {"test": {"number_of_characters": 1_000}, "train": {}},
        "B": {"test": nested},
        "C": None,
    }
    tasks = [
        SimpleNamespace(metadata=SimpleNamespace(name=name, descriptive_stats=each, eval_splits=["test"]))
        for name, each in statistics.items()
    ]
    assert estimated_seconds(tasks, 10.0) == {"A": 100.0, "B": 10.0, "C": None}


def test_averages_are_by_type():
    types = {"A": "STS", "B": "STS", "C": "Retrieval", "D": "STS"}
    found = averages({"A": 0.2, "B": 0.4, "C": 0.9}, types)
    assert found["types"] == {"Retrieval": 0.9, "STS": pytest.approx(0.3)}
    assert (found["mean_of_tasks"], found["mean_of_types"]) == (pytest.approx(0.5), pytest.approx(0.6))
    assert found["missing"] == ["D"]
    assert averages({}, types)["mean_of_tasks"] is None


def test_results_of_other_settings_are_not_taken_over(model_folder):
    def revision(**changes):
        model = EmbeddingModel(folder=str(model_folder), device="cpu", **changes)
        prefixes = (model.query_prefix, model.document_prefix)
        return revision_digest(embedder_identity(load_embedder(model), model), prefixes)

    changes = [{"pooling": "cls"}, {"max_length": 9}, {"dtype": "bf16"}]
    changes += [{"query_prefix": "a "}, {"document_prefix": "a "}]
    assert len({revision(), *(revision(**each) for each in changes)}) == 1 + len(changes)
    assert revision() == revision(pooling="avg"), "the folder's own pooling"


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")  # of mteb's bitext mining
def test_every_kind_of_task_runs(model_folder):
    mteb = pytest.importorskip("mteb", reason="the extra mteb is not installed")
    from neobert.evaluation.mteb_suite.model import MtebModel

    found = mteb.mock_run(MtebModel(Encoder.load(model_folder, normalize=True), "x", "r", ("a ", "")))
    kinds = Counter(type(one).__name__ for one in found.task_results.values())
    assert kinds["TaskError"] == 0
    assert kinds["TaskResult"] > 20


def test_results_are_kept_and_not_repeated(model_folder, tmp_path, monkeypatch):
    pytest.importorskip("mteb", reason="the extra mteb is not installed")
    from mteb.mocks.mock_run import ALL_MOCK_TASK_TEST_GRID

    from neobert.evaluation.mteb_suite import run

    task = next(task for task in ALL_MOCK_TASK_TEST_GRID if task.metadata.type == "STS")
    monkeypatch.setattr(run, "_load_tasks", lambda *_: [task])
    monkeypatch.setattr(run, "characters_per_second", lambda _: 1_000.0)
    model = EmbeddingModel(folder=str(model_folder), device="cpu")
    rest = (tmp_path / "cache", None, ("x",))
    found = run.evaluate_tasks(model, *rest)
    assert (list(found["types"]), found["failed"]) == (["STS"], {})
    monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("encoded again"))
    assert run.evaluate_tasks(model, *rest)["scores"] == pytest.approx(found["scores"])
    monkeypatch.setattr(Encoder, "encode", lambda *_: 1 / 0)
    assert list(run.evaluate_tasks(replace(model, pooling="cls"), *rest)["failed"]) == list(found["scores"])
