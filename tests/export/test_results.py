"""Figures in the model card: the run's own, those of `evaluate`, and texts from outside that must not act."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from neobert.evaluation.glue.summary import suite_summary
from neobert.export.results import (
    MAX_ROWS,
    add_sections,
    evaluation_section,
    read_reports,
    training_section,
)
from neobert.runfiles.evaluation_report import ReportFigure, summary_json
from tests.refusals import refusal_of

SOURCE = {"step": 1_200, "tokens_total": 98_304, "metrics": {"eval/loss": 2.5, "eval/accuracy": 0.25}}


def report(
    *figures: ReportFigure, notes: tuple[str, ...] = (), title: str = "GLUE", weights: str = "w"
) -> dict[str, Any]:
    return {"weights": weights, "summary": summary_json(title, figures, notes)}


def section(tmp_path: Path, content: Any, weights: str = "w") -> str:
    file = tmp_path / "glue.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return evaluation_section(read_reports([file], weights))


def test_the_run_s_own_metrics_are_those_of_these_weights():
    text = training_section([SOURCE])
    assert "Step 1,200 of the run, 98,304 tokens." in text
    assert "| loss | 2.5000 |" in text
    assert "| accuracy | 25.00% |" in text
    assert "one seed" in text
    assert "did not evaluate these weights" in training_section([{**SOURCE, "metrics": {}}])
    mean = training_section([SOURCE, {"step": 1_300}])
    assert "steps 1,200, 1,300. The run did not evaluate the mean" in mean
    assert training_section([{"step": None}]) == ""


def test_figures_keep_what_they_do_not_say(tmp_path):
    figures = [
        ReportFigure(
            name="rte", metric="accuracy", value=0.612, std=0.0123, seeds=3, starts_from="mnli (warm start)"
        ),
        ReportFigure(name="cola", metric="mcc", value=None, seeds=3, starts_from="pretrained"),
    ]
    text = section(tmp_path, report(*figures, notes=("qnli: not comparable",)))
    assert "| rte | accuracy | 61.2 ± 1.2 | 3 | mnli (warm start) |" in text
    assert "| cola | mcc | - | 3 | pretrained |" in text
    assert "- qnli: not comparable\n" in text
    plain = section(tmp_path, report(ReportFigure(name="t", metric="ppl", value=1234.5, is_share=False)))
    assert "| task | metric | score |\n|---|---|---|\n| t | ppl | 1,234.50 |" in plain


def test_many_figures_are_cut_and_counted(tmp_path):
    figures = [ReportFigure(name=str(number), metric="m", value=0.5) for number in range(MAX_ROWS + 2)]
    text = section(tmp_path, report(*figures))
    assert text.count("| 50.0 |") == MAX_ROWS
    assert "2 more figures" in text


def test_a_suite_states_warm_starts_samples_and_copies():
    files = {"train": {"rows": 100}, "dev": {"rows": 277, "in_train": 4}}
    task = {
        "metrics": {"accuracy": {"mean": 0.5, "std": None}}, "runs": [{}], "files": files,
        "starts_from": ["mnli (warm start)"],
        "not_comparable": ["the training set has 100 texts (published: 2,490)"],
    }  # fmt: skip
    notes = suite_summary({"rte": task}, ["cb"])["notes"]
    assert any("warm start" in note for note in notes)
    assert (
        "rte: not comparable with published scores: the training set has 100 texts (published: 2,490)"
        in notes
    )
    assert "rte: the training set contains 4 of 277 development texts" in notes
    assert notes[-1] == "not finished: cb"
    cold = suite_summary({"rte": {**task, "starts_from": ["pretrained"]}}, [])["notes"]
    assert not any("warm start" in note for note in cold)
    assert not any("settings" in note for note in cold)
    changed = suite_summary({"rte": task}, [], ["optimizer.lr=1e-4", "trainer.max_steps=6"])["notes"]
    assert "settings other than the default recipe: optimizer.lr=1e-4, trainer.max_steps=6" in changed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a report of `neobert-launch evaluate`"),
        ({"weights": "w"}, "missing key 'summary'"),
        ({"summary": summary_json("t", [], [])}, "missing key 'weights'"),
        (
            report(ReportFigure(name="a", metric="m", value=float("nan"))),
            "0.value should be a finite number, got nan",
        ),
        (
            report(ReportFigure(name="a", metric="m", value="high")),
            "0.value should be a valid number, got 'high'",
        ),  # type: ignore[arg-type]
        (
            {"weights": "w", "summary": {"figures": [{"name": "a"}], "title": "t", "notes": []}},
            "0.metric: field required",
        ),
        ({"weights": "w", "summary": {"figures": [], "title": "t"}}, "missing key 'notes'"),
        (report(weights="other"), "is about weights other than"),
    ],
)
def test_other_files_and_other_weights_are_refused(tmp_path, content, message):
    assert refusal_of(section, "export-results", message, tmp_path, content).place.endswith("glue.json")


HOSTILE = "x | y\n<script>alert(1)</script> ![i](http://e/i.png) [l](javascript:a) `c` # h *b* \x1b[31m &lt;"


@given(st.one_of(st.just(HOSTILE), st.text()))
def test_texts_of_a_report_are_shown_and_never_act(text):
    figure = ReportFigure(name=text, metric="m", value=0.5, starts_from=text)
    content = summary_json(text, [figure], [text])
    rendered = evaluation_section([{**content, "figures": [figure]}])
    tokens = MarkdownIt("commonmark").enable("table").parse(rendered)
    kinds = {each.type for token in tokens for each in (token, *(token.children or ()))}
    assert kinds.isdisjoint({"html_block", "html_inline", "image", "link_open", "code_inline", "fence"})
    assert sum(token.type == "heading_open" for token in tokens) == 2
    assert sum(token.type == "tr_open" for token in tokens) == 2


def test_sections_follow_the_card(tmp_path):
    add_sections(tmp_path, "## A\n")
    assert not (tmp_path / "README.md").exists()
    (tmp_path / "README.md").write_text("---\ntags: [a]\n---\n\n# Card\n", encoding="utf-8")
    add_sections(tmp_path, "", "## A\n")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "---\ntags: [a]\n---\n\n# Card\n\n## A\n"
    assert re.fullmatch(r"---\n.*?\n---\n.*", (tmp_path / "README.md").read_text(), re.S)
