"""The figure of the mutation score, in the common form, from the scorer's report."""

from __future__ import annotations

import json

import mutation_score
import pytest

REPORT = {"score": 0.99764, "killed": 80, "judged": 81, "equivalent": 2, "survivors": [{"line": 3}]}


@pytest.mark.parametrize("code", [0, 1])
def test_a_report_becomes_a_figure_whatever_the_score(code, tmp_path, monkeypatch):
    def scored(report):
        report.write_text(json.dumps(REPORT), encoding="utf-8")
        return code

    monkeypatch.setattr(mutation_score, "score_into", scored)
    path = tmp_path / "mutation-score.json"
    assert mutation_score.main(["--out", str(path)]) == code
    figure = json.loads(path.read_text(encoding="utf-8"))
    assert (figure["metric"], figure["value"], figure["target"]) == ("mutation-score", 0.9976, 0.99)
    assert figure["detail"] == {name: REPORT[name] for name in REPORT if name != "score"}


def test_without_a_report_there_is_no_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation_score, "score_into", lambda report: 3)
    assert mutation_score.main(["--out", str(tmp_path / "mutation-score.json")]) == 3
    assert list(tmp_path.iterdir()) == []
