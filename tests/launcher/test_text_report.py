"""Findings on a terminal: hierarchy, the whole value underlined, what can be fixed, colours on request."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.formats.text import excerpt, token_end
from launcher.terminal.console import plain_description
from neobert.errors import ProjectError, prefix_place
from validators.rule import RULES

ANSI = re.compile(r"\x1b\[[\d;]*m")
BAD = "profile: cpu-demo\ntrainer:\n  save_every: 5\n  max_steps: -1  # all\n"


@pytest.mark.parametrize(
    ("line", "start", "underlined"),
    [
        ("  lr: 5e-4  # peak", "5", "5e-4"),
        ("path: my text.txt # it", "my", "my text.txt"),
        ('name: "a # b" # c', '"', '"a # b"'),
        ("name: 'it''s'", "'", "'it''s'"),
        ("betas: [0.9, 0.95]  # two", "[", "[0.9, 0.95]"),
        ("a: {b: [1, 2], c: 3}", "{", "{b: [1, 2], c: 3}"),
        ("a: {b: 1, c: 3}", "3", "3"),
        ("betas: [0.9,  # the rest below", "[", "[0.9,"),
        ("save_steps = 5 # toml", "save", "save_steps"),
        ('  "lr": 0.1', '"lr"', '"lr"'),
        ("$key: 1", "$", "$key: 1"),
        ("\t\tsave_steps: 5", "\t", "\t\t"),
    ],
)
def test_the_whole_key_or_value_is_underlined(line, start, underlined):
    place = line.index(start)
    assert line[place : token_end(line, place)] == underlined


@given(st.text(max_size=40), st.integers(1, 45), st.sampled_from([0, 20, 80]))
def test_carets_stay_within_the_line(tmp_path_factory, text, column, width):
    path = tmp_path_factory.mktemp("line") / "run.yaml"
    path.write_text(text, encoding="utf-8")
    for number, shown in excerpt(str(path), 1, column, width):
        assert number or set(shown.strip()) <= {"^"}
        assert not width or len(shown) <= width


def test_a_long_line_is_shown_from_where_its_value_is_seen(tmp_path):
    path = tmp_path / "run.yaml"
    keys = ", ".join(f"key_{number}: {number}" for number in range(20))
    path.write_text(f"trainer: {{{keys}, save_every: 5}}\n", encoding="utf-8")
    column = path.read_text().index("save_every") + 1
    (_, source), (_, carets) = excerpt(str(path), 1, column, 60)
    assert source.startswith("...")
    assert len(source) <= 60 - 5
    at = carets.index("^")
    assert source[at : at + carets.count("^")] == "save_every"


def test_lint_marks_and_counts_what_fix_would_fix(command, run_file):
    path = run_file(BAD)
    out = command("lint", path).out
    assert "fail CFG007 renamed-key [*]: trainer.save_every is not a key here\n" in out
    assert (
        f"  --> {path}:3:3\n 3 |   save_every: 5\n   |   ^^^^^^^^^^\n  = hint: write trainer.save_steps, in"
        in out
    )
    assert "fail CFG003 wrong-value: trainer.max_steps" in out
    assert out.endswith("fail: 2 fail, 0 warn\n[*] 1 fixable with --fix\n")
    assert path.read_text() == BAD, "to count is not to fix"


def test_a_line_is_shown_once_for_all_its_findings(command, run_file):
    path = run_file("profile: cpu-demo\ntrainer:\n  max_steps: 40\n")
    out = command("lint", path, "--select", "SCH").out
    assert out.count(f"--> {path}:1:10") == 2
    assert out.count("1 | profile: cpu-demo") == 1


def test_quiet_prints_findings_only(command, run_file, tmp_path):
    other = tmp_path / "docker-compose.yml"
    other.write_text("services: {}\n")
    run_file("profile: cpu-demo\n")
    passing = command("lint", "-q", tmp_path)
    assert (passing.code, passing.out, passing.err) == (0, "", "")
    failing = command("lint", "-q", run_file(BAD))
    assert failing.code == 1
    assert "CFG007" in failing.out
    assert "2 fail" not in failing.out


def test_lint_names_a_rule_that_raised_and_its_line(command, run_file, monkeypatch):
    """A rule that someone is writing: exit code 3 and a count would not tell which, or why."""
    monkeypatch.setitem(RULES, "OPT001", replace(RULES["OPT001"], judge=lambda *_: prefix_place(None, "")))
    answer = command("lint", run_file("profile: cpu-demo\n"))
    assert answer.code == 3
    message = "unknown OPT001 swapped-betas: the rule raised an exception: TypeError: "
    assert re.search(rf"^{message}.* \(at neobert/errors.py:\d+\)$", answer.out, re.MULTILINE)


def test_colours_change_nothing_but_colours(command, run_file, monkeypatch):
    path = run_file(BAD)
    plain = command("lint", path).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = command("lint", path).out
    assert "\x1b[31;1mfail CFG007\x1b[0m" in coloured
    assert "\x1b[36m= hint:\x1b[0m" in coloured
    assert ANSI.sub("", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert command("lint", path).out == plain


def test_an_error_of_a_config_has_the_form_of_lint(command, run_file):
    path = run_file(BAD)
    assert command("plan", path).err.strip() == command("lint", "-q", path).out.replace(" [*]", "").strip()


def test_a_rule_s_page_is_rendered_on_a_terminal_and_plain_in_a_pipe(command, monkeypatch):
    plain = command("rule", "CKP001").out
    assert "## Example\n```yaml\n" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    rendered = command("rule", "CKP001").out
    assert "\x1b[1mExample\x1b[0m\n    trainer:" in rendered
    assert "```" not in rendered
    assert "##" not in rendered


@pytest.mark.parametrize("content", [None, b"profile: \xff\xfe\n", b"", b"a: [\n"])
def test_a_file_that_cannot_be_read_has_nothing_to_fix(content, command, tmp_path):
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content)
    for words in (("lint", path), ("lint", "--fix", path)):
        answer = command(*words)
        assert (answer.code, "fixable" in answer.out) == (2, False), answer


@pytest.mark.parametrize(
    ("place", "message", "shown"),
    [
        ("run.yaml:3", "not YAML", "run.yaml:3: not YAML"),
        ("", "not YAML", "not YAML"),
        ("trainer.max_steps", "trainer.max_steps is 6", "trainer.max_steps is 6"),
        ("dataset.mixture", "dataset.mixture[1] has no path", "dataset.mixture[1] has no path"),
        ("model", "model.type is hf", "model: model.type is hf"),
        ("model.dropout", "model.dropout_rate is 1", "model.dropout: model.dropout_rate is 1"),
        ("hidden", "no file, 1 hidden", "hidden: no file, 1 hidden"),
    ],
)
def test_an_error_names_its_place_once(place, message, shown):
    assert plain_description(ProjectError("X", message, place=place)) == f"{shown} [X]"
