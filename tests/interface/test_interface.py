"""The Python interface: a run from its config to its predictions, as the commands do it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import neobert_launch as nl

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"
TINY = {
    "model.hidden_size": 32, "model.num_hidden_layers": 1, "model.num_attention_heads": 2,
    "model.intermediate_size": 48, "tokenizer.vocab_size": 300, "scheduler.warmup_steps": 0,
    "trainer.max_steps": 6, "trainer.save_steps": 3, "trainer.eval_steps": 3, "trainer.logging_steps": 1,
    "trainer.output_dir": "runs/tiny",
}  # fmt: skip


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_importing_it_imports_no_torch():
    heavy = "torch", "transformers", "numpy", "pandas"
    code = f"import sys, neobert_launch; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_values_win_and_are_named_as_origins(in_folder):
    (in_folder / "run.yaml").write_text("profile: cpu-demo\noptimizer: {lr: 2e-3}\n")
    run = nl.load_run("run.yaml", values={"optimizer.lr": 1e-3, "trainer.output_dir": "40"})
    assert repr(run).startswith("Run(--config run.yaml --set optimizer.lr=")
    assert (run.config.optimizer.lr, run.config.trainer.output_dir) == (1e-3, "40")
    other = run.with_values({"optimizer.lr": 5e-4})
    assert (other.config.optimizer.lr, run.config.optimizer.lr) == (5e-4, 1e-3)
    assert other.digest != run.digest
    assert run.origins["optimizer.lr"].kind == "override"
    assert run.plan().num_parameters.value > 1e6


def test_errors_have_their_place(in_folder):
    (in_folder / "run.yaml").write_text("profile: cpu-demo\noptimizer: {rate: 2e-3}\n")
    with pytest.raises(nl.ProjectError, match="rate"):
        nl.load_run("run.yaml")
    with pytest.raises(nl.ProjectError, match="no such folder") as caught:
        nl.encode("absent", ["a"])
    with pytest.raises(nl.ProjectError, match="absent: there is no such folder"):
        nl.RunDirectory("absent")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("use", [nl.predict, nl.encode])
def test_texts_that_would_be_read_as_others_are_refused(use):
    with pytest.raises(TypeError, match="pass a list"):
        use("model", "a fine film")
    with pytest.raises(TypeError, match="has bytes"):
        use("model", [b"a fine film"])
    with pytest.raises(TypeError, match="has pairs"):
        nl.encode("model", [("a film", "a fine film")])


@pytest.mark.usefixtures("warm")
def test_preflight_returns_the_findings(in_folder):
    sound = nl.load_run(profile="cpu-demo", values=TINY)
    assert sound.preflight("static").verdict == "pass"
    wrong = sound.with_values({"optimizer.lr": 5.0})
    verdict = wrong.preflight("static")
    assert not verdict
    assert {"fail"} <= {finding.severity for finding in verdict.findings}
    lines: list[str] = []
    with pytest.raises(nl.ProjectError, match=r"^train ended with exit code 1") as refused:
        wrong.train(lines.append)
    assert refused.value.hint == "see the output above"
    assert "preflight failed: no run was started or written" in lines


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_run_from_config_to_embeddings(in_folder):
    lines: list[str] = []
    done = nl.load_run(profile="cpu-demo", values=TINY).train(lines.append)
    assert any("finished at step 6" in line for line in lines)
    assert done.outcome["status"] == "finished"
    assert done.steps[-1] == 6
    assert done.checkpoint() == done.checkpoint(6)
    assert done.config.model.hidden_size == 32
    metrics = done.metrics()
    assert isinstance(metrics, pd.DataFrame)
    assert metrics["train/loss"].notna().sum() == 6
    assert metrics.loc[6, "eval/loss"] > 0
    with pytest.raises(nl.ProjectError, match="there is no checkpoint 99"):
        done.checkpoint(99)
    with pytest.raises(nl.ProjectError) as refused:
        done.checkpoint("best")
    assert refused.value.hint.endswith("best needs trainer.metric_for_best_model")
    embeddings = nl.encode(done.path, ["the", "def"], pooling="avg")
    assert embeddings.shape == (2, 32)
    assert np.isfinite(embeddings).all()
    lines_of_text = "return\u2028the\x85[MASK]"
    found = nl.predict(done.path, [lines_of_text])
    assert list(found.columns) == ["text", "prediction", "probability"]
    assert found["text"].tolist() == [lines_of_text]
    day = pd.Timestamp("2026-01-02")
    table = pd.DataFrame({"id": [7, None], "day": [day, pd.NaT], "sentence": ["a [MASK]", "the [MASK]"]})
    answered = nl.predict(done.path, table)
    assert list(answered.columns) == [*table.columns, "prediction", "probability"]
    assert (answered["day"][0], answered["day"].isna().tolist()) == ("2026-01-02 00:00:00", [False, True])
    texts = table["sentence"].set_axis([5, 9])
    assert nl.predict(done.path, texts).index.tolist() == [5, 9]
    for same in (pa.table({"sentence": texts}), [{"sentence": each} for each in texts]):
        assert nl.predict(done.path, same)["probability"].equals(answered["probability"])
    with pytest.raises(nl.ProjectError, match=r"^texts:1: none of the columns"):
        nl.predict(done.path, table[["id"]])
    assert nl.encode(done.path, pd.Series(["the", float("nan")]), pooling="avg").shape == (2, 32)


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_notebook_runs(in_folder):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
