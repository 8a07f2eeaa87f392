"""The conductor of GLUE: order, warm starts, continuation, summary; and one real run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from launcher.commands import evaluate_glue
from launcher.terminal.values import origin_text
from neobert.errors import EXIT_PREEMPTED, EXIT_TRAINING_FAILED
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.settings import StartWeights, run_settings
from neobert.evaluation.glue.summary import averages, best_evaluation, statistics, task_summary
from neobert.evaluation.glue.tasks import TASKS
from neobert.folder_lock import lock_folder
from profiles.registry import resolve_run
from validators.core import judge
from validators.planning import plan_run


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run files that were trained; the trainer only pretends, and fails for the codes in `failing`."""
    settings: list[dict[str, Any]] = []

    def report_of(module: str, content: dict[str, Any], *, doing: str, hint: str) -> dict[str, Any]:
        output = Path(content["output"])
        tasks = {name: prepare_task(TASKS[name], content["data"], output / name) for name in content["tasks"]}
        return {"tasks": tasks, "weights": "digest"}

    def run(request: evaluate_glue.train.TrainRequest, output_format: str) -> int:
        content = json.loads(request.selection.files[0].read_text())
        settings.append(content)
        folder = Path(content["trainer"]["output_dir"])
        (folder / "checkpoints" / "best").mkdir(parents=True, exist_ok=True)
        metric = content["trainer"]["metric_for_best_model"]
        lines = [
            {"step": step, "eval/accuracy": 0.5, "eval/pearson": 0.5, metric: 0.1 * step}
            for step in (0, 3, 6)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcome = {"status": "finished", "exit_code": 0, "step": 6, "message": ""}
        (folder / "outcome.json").write_text(json.dumps(outcome))
        return 0

    monkeypatch.setattr(evaluate_glue, "run_json_child", report_of)
    monkeypatch.setattr(evaluate_glue.train, "run", run)
    return settings


@pytest.fixture
def evaluate(model_folder, glue_data, tmp_path, capsys) -> Callable[..., dict[str, Any]]:
    def run(*more: str, code: int = 0) -> dict[str, Any]:
        words = ["evaluate", "glue", model_folder, glue_data, "-o", tmp_path / "out",
                 "--device", "cpu", "--output-format", "json", *more]  # fmt: skip
        capsys.readouterr()
        assert app.run([str(word) for word in words]) == code
        out = capsys.readouterr().out
        return json.loads(out) if out else {}

    return run


def names(settings: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(Path(each["dataset"]["path"]).name, each["seed"]) for each in settings]


def test_every_task_and_seed_is_trained_once(trained, evaluate):
    report = evaluate("--tasks", "cola,rte", "--seeds", "2")
    assert names(trained) == [("cola", 0), ("cola", 1), ("rte", 0), ("rte", 1)]
    assert report["tasks"]["cola"]["score"] == {
        "mean": pytest.approx(0.6),
        "std": 0,
        "values": [0.6000000000000001] * 2,
    }
    assert report["tasks"]["rte"]["starts_from"] == ["pretrained"]
    assert report["averages"]["not_comparable"] == ["cola", "rte"]
    assert report["missing"] == []
    evaluate("--tasks", "cola,rte", "--seeds", "2")
    assert len(trained) == 4


def test_more_seeds_and_other_settings_are_trained_only(trained, evaluate):
    evaluate("--tasks", "cola", "--seeds", "1")
    assert evaluate("--tasks", "cola", "--seeds", "2")["tasks"]["cola"]["score"]["std"] == 0
    assert names(trained) == [("cola", 0), ("cola", 1)]
    evaluate("--tasks", "cola", "--seeds", "1", "--set", "optimizer.lr=1e-3")
    assert names(trained)[2:] == [("cola", 0)]


def test_results_of_other_tasks_and_seeds_are_kept(trained, evaluate, tmp_path):
    """Results are those of runs: a command for other tasks or fewer seeds does not repeat them later."""
    evaluate("--tasks", "cola", "--seeds", "2")
    evaluate("--tasks", "rte", "--seeds", "1")
    assert names(trained) == [("cola", 0), ("cola", 1), ("rte", 0)]
    report = evaluate("--tasks", "cola,rte", "--seeds", "1")
    assert (len(trained), list(report["tasks"]), report["missing"]) == (3, ["cola", "rte"], [])
    assert json.loads((tmp_path / "out" / "glue.json").read_text()) == report
    assert len(evaluate("--tasks", "cola", "--seeds", "2")["tasks"]["cola"]["runs"]) == 2
    assert len(trained) == 3


def test_a_second_evaluation_in_the_same_folder_is_refused(trained, evaluate, tmp_path):
    """It took a run without a checkpoint for one that was stopped, and deleted it."""
    with lock_folder(tmp_path / "out"):
        answer = evaluate("--tasks", "cola", "--seeds", "1", code=1)
    assert ("another evaluation writes to this folder" in json.dumps(answer), trained) == (True, [])
    evaluate("--tasks", "cola", "--seeds", "1")
    assert len(trained) == 1


def test_an_unfinished_run_is_not_a_result(trained, evaluate, tmp_path):
    evaluate("--tasks", "cola", "--seeds", "1")
    (folder,) = (tmp_path / "out" / "runs" / "cola").iterdir()
    evaluate("--tasks", "rte", "--seeds", "1")
    (folder / "outcome.json").write_text(json.dumps({"status": "interrupted", "exit_code": 130, "step": 3}))
    evaluate("--tasks", "cola", "--seeds", "1")
    assert names(trained) == [("cola", 0), ("rte", 0), ("cola", 0)]


def test_results_of_other_settings_are_not_reported(trained, evaluate, monkeypatch, tmp_path):
    evaluate("--tasks", "cola,rte", "--seeds", "1")
    finish, codes = evaluate_glue.train.run, iter([0, EXIT_PREEMPTED])
    monkeypatch.setattr(evaluate_glue.train, "run", lambda *arguments: next(codes) or finish(*arguments))
    words = ("--tasks", "cola,rte", "--seeds", "1", "--set", "optimizer.lr=1e-3")
    evaluate(*words, code=EXIT_PREEMPTED)
    report = json.loads((tmp_path / "out" / "glue.json").read_text())
    assert (list(report["tasks"]), report["missing"]) == (["cola"], ["rte"])
    monkeypatch.setattr(evaluate_glue.train, "run", lambda *_: EXIT_TRAINING_FAILED)
    report = evaluate(*words, code=EXIT_TRAINING_FAILED)
    assert (list(report["tasks"]), report["missing"]) == (["cola"], ["rte"])


def test_other_data_is_trained_again(trained, evaluate, glue_data):
    evaluate("--tasks", "cola", "--seeds", "1")
    file = glue_data / "CoLA" / "train.tsv"
    file.write_text(file.read_text() + "gj04\t1\t\tone more\n")
    evaluate("--tasks", "cola", "--seeds", "1")
    assert len(trained) == 2


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_stopped_evaluation_continues(trained, evaluate, monkeypatch, stopped_at):
    finish = evaluate_glue.train.run

    def stop(request, output_format):
        return finish(request, output_format) if len(trained) < stopped_at else EXIT_PREEMPTED

    monkeypatch.setattr(evaluate_glue.train, "run", stop)
    evaluate("--tasks", "cola", "--seeds", "3", code=EXIT_PREEMPTED)
    monkeypatch.setattr(evaluate_glue.train, "run", finish)
    report = evaluate("--tasks", "cola", "--seeds", "3")
    assert names(trained) == [("cola", seed) for seed in range(3)]
    assert len(report["tasks"]["cola"]["runs"]) == 3


def test_a_failed_run_does_not_end_the_others(trained, evaluate, monkeypatch):
    finish = evaluate_glue.train.run
    codes = iter([EXIT_TRAINING_FAILED, 0])
    monkeypatch.setattr(evaluate_glue.train, "run", lambda *arguments: next(codes) or finish(*arguments))
    report = evaluate("--tasks", "cola", "--seeds", "2", code=EXIT_TRAINING_FAILED)
    assert (report["missing"], len(report["tasks"]["cola"]["runs"])) == (["cola"], 1)


def test_transfer_starts_from_the_best_checkpoint_of_that_seed(trained, evaluate, tmp_path):
    report = evaluate("--tasks", "rte,mnli", "--seeds", "2", "--transfer")
    assert names(trained) == [("mnli", 0), ("mnli", 1), ("rte", 0), ("rte", 1)]
    for parent, child in ((0, 2), (1, 3)):
        best = Path(trained[parent]["trainer"]["output_dir"]) / "checkpoints" / "best"
        assert trained[child]["model"]["pretrained_checkpoint"] == str(best)
    assert report["tasks"]["rte"]["starts_from"] == ["mnli (warm start)"]
    assert list((tmp_path / "out" / "runs").glob("*/*/checkpoints")) == []
    evaluate("--tasks", "rte,mnli", "--seeds", "2", "--transfer")
    assert len(trained) == 4


def test_a_warm_start_of_a_warm_start_names_both(trained, evaluate, glue_data):
    (glue_data / "MNLI_sample").rename(glue_data / "MNLI")
    shutil.copytree(glue_data / "MNLI", glue_data / "SNLI")
    report = evaluate("--tasks", "rte,mnli,snli", "--seeds", "1", "--transfer")
    assert names(trained) == [("snli", 0), ("mnli", 0), ("rte", 0)]
    starts = {name: task["starts_from"] for name, task in report["tasks"].items()}
    assert starts == {
        "rte": ["snli, then mnli (warm start)"], "mnli": ["snli (warm start)"], "snli": ["pretrained"],
    }  # fmt: skip
    # Other data of the last one needs the weights of all before it, whose checkpoints are gone.
    (glue_data / "RTE" / "train.tsv").write_text((glue_data / "RTE" / "dev.tsv").read_text())
    evaluate("--tasks", "rte,mnli,snli", "--seeds", "1", "--transfer")
    assert names(trained)[3:] == [("snli", 0), ("mnli", 0), ("rte", 0)]


def test_a_run_whose_source_failed_is_left_out(trained, evaluate, monkeypatch):
    monkeypatch.setattr(evaluate_glue.train, "run", lambda *_: EXIT_TRAINING_FAILED)
    report = evaluate("--tasks", "mnli,rte", "--seeds", "1", "--transfer", code=EXIT_TRAINING_FAILED)
    assert (trained, report["missing"]) == ([], ["mnli", "rte"])


def test_a_source_without_checkpoints_is_trained_again_for_a_warm_start(trained, evaluate):
    evaluate("--tasks", "mnli", "--seeds", "1")
    evaluate("--tasks", "mnli,rte", "--seeds", "1", "--transfer")
    assert names(trained) == [("mnli", 0), ("mnli", 0), ("rte", 0)]


def test_checkpoints_stay_on_request(trained, evaluate, tmp_path):
    evaluate("--tasks", "cola", "--seeds", "1", "--keep-checkpoints")
    assert len(list((tmp_path / "out" / "runs").glob("*/*/checkpoints/best"))) == 1


def test_random_weights_are_named(trained, evaluate):
    report = evaluate("--tasks", "cola", "--seeds", "1", "--random-weights")
    assert trained[0]["model"]["pretrained_checkpoint"] is None
    assert (report["weights"], report["tasks"]["cola"]["starts_from"]) == (
        "random weights",
        ["random weights"],
    )


def test_findings_point_at_the_arguments_and_not_at_the_generated_file(
    trained, evaluate, monkeypatch, model_folder, glue_data
):
    runs = []

    def refuse(request: evaluate_glue.train.TrainRequest, output_format: str) -> int:
        runs.append(request.selection.require())
        return 1

    monkeypatch.setattr(evaluate_glue.train, "run", refuse)
    evaluate("--tasks", "cola", "--seeds", "1", "--set", "model.tie_word_embeddings=true", code=1)
    (run,) = runs
    keys = ("dataset", "dataset.path", "model.hidden_size", "tokenizer.path", "model.tie_word_embeddings")
    data, model = str(glue_data), str(model_folder)
    assert [run.place(key).file for key in keys] == [data, data, model, model, "<command line>"]
    assert (run.place("dataset.path").line, run.place("dataset.path").column) == (0, 0)
    assert run.place("trainer.max_steps").file.endswith("cola-seed-0.json")
    assert origin_text(run.origin("dataset.path")) == data


@pytest.mark.parametrize("override", ["optimizer.lrr=1", "optimizer.lr=fast", "optimizer.lr"])
def test_an_unusable_override_is_refused_once_and_nothing_is_trained(
    trained, evaluate, model_folder, glue_data, tmp_path, capsys, override
):
    words = ["evaluate", "glue", model_folder, glue_data, "-o", tmp_path / "out", "--device", "cpu",
             "--tasks", "cola,rte", "--set", override]  # fmt: skip
    assert app.run([str(word) for word in words]) == 2
    reported = capsys.readouterr()
    assert (reported.err.count("fail CFG00"), reported.out, trained) == (1, "", [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "cola,squad"), "squad is not a task or suite"),
        (("--tasks", "cola,superglu"), "suites (glue, superglue)"),
        (
            ("--tasks", "boolq,record"),
            "task record is not supported: it chooses among the entities of a passage",
        ),
        (("--tasks", "rte", "--transfer"), "add to --tasks: mnli (for rte)"),
        (("--tasks", "cola", "--transfer"), "remove --transfer"),
    ],
)
def test_tasks_that_cannot_run_are_refused(
    evaluate, capsys, model_folder, glue_data, tmp_path, words, message
):
    code = app.run(["evaluate", "glue", str(model_folder), str(glue_data), "-o", str(tmp_path / "o"), *words])
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_encoder_of_transformers_is_trained_from_its_folder(trained, evaluate, model_folder):
    config = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64}
    (model_folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    evaluate("--tasks", "cola", "--seeds", "1")
    evaluate("--tasks", "cola", "--seeds", "1", "--random-weights")
    pretrained, random = (each["model"] for each in trained)
    assert pretrained == {"type": "hf", "pretrained_checkpoint": str(model_folder)}
    assert random == {"type": "hf", "config": str(model_folder)}
    assert trained[0]["classification"]["pooling"] == "cls"
    assert trained[0]["dataset"]["max_seq_length"] == 64


def test_an_encoder_that_cannot_be_trained_is_refused(trained, evaluate, model_folder):
    (model_folder / "config.json").write_text(json.dumps({"model_type": "t5", "hidden_size": 32}))
    answer = evaluate("--tasks", "cola", code=1)
    assert ("t5" in json.dumps(answer), trained) == (True, [])


def test_a_folder_without_weights_is_refused_once(trained, evaluate, model_folder):
    """The config alone is enough for --random-weights; an exported onnx folder has one, too."""
    (model_folder / "model.safetensors").unlink()
    answer = evaluate("--tasks", "cola,rte", code=2)
    assert ("has no weights (*.safetensors)" in json.dumps(answer), trained) == (True, [])
    evaluate("--tasks", "cola", "--seeds", "1", "--random-weights")
    assert len(trained) == 1


def test_the_best_evaluation_counts_from_minus_infinity():
    values = [(0, 0.9), (2, -0.4), (4, None), (6, -0.1), (9, -0.2)]
    rows = [{"step": step, "eval/mcc": value} for step, value in values] + [{"step": 10, "train/loss": 1.0}]
    assert best_evaluation(TASKS["cola"], rows) == {"step": 6, "mcc": -0.1}
    assert best_evaluation(TASKS["cola"], rows[:1]) is None


def test_scores_are_means_of_metrics_and_seeds():
    assert statistics([0.5, 0.7]) == {"mean": 0.6, "std": pytest.approx(0.1 * 2**0.5), "values": [0.5, 0.7]}
    assert statistics([0.5])["std"] is None
    assert statistics([0.5, None])["mean"] is None
    files = {"train": {"rows": 3_668}, "dev": {"rows": 408, "in_train": 3}}
    runs = [{"seed": 0, "starts_from": "pretrained", "metrics": {"f1": 0.8, "accuracy": 0.6}}]
    summary = task_summary("mrpc", files, runs)
    assert (summary["score"]["mean"], summary["not_comparable"]) == (pytest.approx(0.7), [])
    tasks = {"mrpc": summary, "wnli": {"score": {"mean": 0.1}, "not_comparable": ["x"]}}
    found = averages(tasks)
    assert found["all"] == pytest.approx(0.4)
    assert found["suites"] == {"glue": {"mean": pytest.approx(0.7), "tasks": ["mrpc"], "of": 8}}
    assert found["not_comparable"] == ["wnli"]


def test_a_task_of_two_suites_names_none_of_them():
    scored = {"score": {"mean": 0.5}, "not_comparable": []}
    assert averages({"rte": scored})["suites"] == {}
    found = averages({"rte": scored, "cb": scored, "snli": scored})["suites"]
    assert {name: suite["tasks"] for name, suite in found.items()} == {"superglue": ["cb", "rte"]}
    both = averages({"rte": scored, "cb": scored, "cola": {"score": {"mean": None}, "not_comparable": []}})
    assert [both["suites"][name]["mean"] for name in ("glue", "superglue")] == [None, 0.5]
    assert both["all"] is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_run_file_of_every_task_passes_the_static_rules(device, tmp_path):
    assert [name for name in TASKS if failures_of(name, device, tmp_path)] == []


def failures_of(name, device, tmp_path):
    model = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 96,
             "max_position_embeddings": 512, "model_type": "neobert"}  # fmt: skip
    settings = run_settings(
        TASKS[name], 0, model=model, tokenizer=tmp_path, start=StartWeights("pretrained", tmp_path),
        data=tmp_path, train_rows=TASKS[name].train_rows, output=tmp_path / "run", device=device,
    )  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(settings))
    resolved = resolve_run(None, (tmp_path / "run.json",))
    findings, _ = judge(resolved, plan_run(resolved))
    return [finding for finding in findings if finding.severity == "fail"]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_real_run_is_scored_and_not_repeated(evaluate, model_folder, glue_data, tmp_path, capsys):
    words = ("--tasks", "cola", "--seeds", "1", "--set", "optimizer.lr=3e-3", "--set", "trainer.max_steps=12")
    command = ["evaluate", "glue", model_folder, glue_data, "-o", tmp_path / "out", *words]
    assert app.run([*map(str, command), "--device", "cpu"]) == 0
    summary = capsys.readouterr().err
    assert "finished at step " in summary
    assert "checkpoints/" not in summary  # they are removed
    report = evaluate(*words)
    assert report["tasks"]["cola"]["metrics"]["mcc"]["mean"] > 0.3
    shutil.rmtree(tmp_path / "out" / "runs")
    assert evaluate(*words) == report
    assert not (tmp_path / "out" / "runs").exists(), "glue.json has the result"
