"""Every figure is written in one form, and every committed one has it."""

import json
from pathlib import Path

import measurement

FIELDS = ["metric", "value", "unit", "target", "device", "versions", "commit", "command", "date", "detail"]
COMMITTED = sorted((Path(__file__).parents[2] / "docs" / "measurements").glob("*.json"))


def test_a_figure_is_named_by_its_file_and_dated(tmp_path, monkeypatch):
    monkeypatch.setenv(measurement.COMMIT_ENV, "abc")
    measurement.write_measurement(tmp_path / "out" / "speed.json", 2.5, "ratio", 2.0, {"rounds": [1, 2]})
    written = json.loads((tmp_path / "out" / "speed.json").read_text())
    assert list(written) == FIELDS
    assert (written["metric"], written["value"], written["commit"]) == ("speed", 2.5, "abc")
    assert written["versions"]["torch"]
    assert written["device"]


def test_the_command_names_no_machine(monkeypatch):
    script = str(Path(measurement.__file__).parent / "startup.py")
    monkeypatch.setattr("sys.argv", [script, "/some/work", "--output", "/some/out", "--rounds", "3"])
    assert measurement.command_line() == "python benchmarks/startup.py work --output out --rounds 3"


def test_committed_figures_have_the_form():
    for path in COMMITTED:
        written = json.loads(path.read_text())
        assert sorted(written.keys() - {"is_complete"}) == sorted(FIELDS), path.name
        assert all(written[name] for name in ("metric", "unit", "device", "versions", "command", "date"))


def test_a_figure_of_a_run_that_was_cut_short_is_marked(tmp_path):
    for is_complete in (False, True):
        measurement.write_measurement(tmp_path / "s.json", 2.5, "ratio", 2.0, {}, is_complete=is_complete)
        assert ("is_complete" in json.loads((tmp_path / "s.json").read_text())) is not is_complete
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
