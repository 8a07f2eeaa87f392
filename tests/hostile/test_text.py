"""Text from outside, in every command and format: what is printed only prints, in lines that are ours."""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.process.json_child import run_json_child
from launcher.report.formats import FORMATS
from launcher.run.live_view import ProgressView, make_view
from launcher.rundir.live_state import LiveReader
from launcher.terminal.console import safe_text
from neobert.errors import ProjectError
from neobert.printable import printable

MARK = "INJECTED"
COMMAND = f"::error file=x,line=1::{MARK}"
PIECES = (
    "a",
    " ",
    f"\n{COMMAND}",
    f"\r{COMMAND}",
    f"\x0b{MARK}",
    f"\x85{MARK}",
    f"\u2028{MARK}",
    COMMAND,
    f"##[error]{MARK}",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\x08\x7f",
    "\u202eabc\u2066",
    "\u200b\ufeff",
    "[link=file:///x]y[/link]",
)
ALL = "".join(PIECES)
HOSTILE = st.lists(st.sampled_from(PIECES) | st.characters(codec="utf-8"), min_size=1, max_size=6).map(
    "".join
)
FEW = settings(max_examples=12)
BEAT = (
    "ts_utc", "seq", "phase", "step", "max_steps", "loss", "tokens_per_second", "eta_s", "tokens_total",
    "work_at_risk_min", "last_checkpoint_step", "gpu_mem_reserved_mib", "host_rss_mib",
)  # fmt: skip
ENUMERATED = ("status", "group", "recorded_utc", "level", "kind")
FACTS = Path(__file__).parents[1] / "facts" / "h200-rehearsal.json"


PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "sarif": json.loads,
    "junit": ElementTree.fromstring,
}


def only_prints(text: str, output_format: str = "text") -> bool:
    """Whether nothing in it acts on a terminal or on GitHub's logs, and no line begins within a value."""
    is_github = output_format == "github"
    return all(
        printable(line, keep="\t") == line
        and not line.strip().startswith(MARK)
        and (is_github or not (line.strip().startswith("::") or "##[" in line))
        for line in text.split("\n")
    )


def check(answer: Any, output_format: str = "text") -> None:
    for output in (answer.out, answer.err):
        assert only_prints(output, output_format), output
    assert "Traceback" not in answer.err
    assert '"unexpected"' not in answer.out
    assert "[unexpected]" not in answer.err


def as_file_name(text: str) -> str:
    return text.replace("/", "").replace("\0", "")[:60] or "x"


@FEW
@given(text=HOSTILE)
@example(text=ALL)
def test_lint_of_keys_values_and_names(text, command, tmp_path):
    folder = tmp_path / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    quoted = json.dumps(text)
    name = as_file_name(text)
    (folder / f"{name}.yaml").write_text(
        f"profile: cpu-demo\ntrainer: {{{quoted}: 3, output_dir: {quoted}}}\ndataset: {{name: {quoted}}}\n"
        f"{quoted}: 1\n"
    )
    (folder / f"{name}.toml").write_text(f'profile = {quoted}\n"{name!a}" = "\x07"\n')
    (folder / f"_{name}.yaml").write_text(f"services: {quoted}\n")  # another tool's: left out
    for output_format in FORMATS:
        answer = command("lint", folder, "--output-format", output_format, "--statistics")
        check(answer, output_format)
        PARSERS.get(output_format, str)(answer.out)


@settings(max_examples=3)
@given(text=HOSTILE)
@example(text=ALL)
def test_what_the_command_line_quotes(text, command):
    word = text.replace("\0", "")
    for words in (
        ("explain", word),
        ("explain", "trainer.output_dir", "--set", f"trainer.output_dir={word}"),
        ("rule", word),
        ("profiles", "show", word),
        ("plan", "-p", "cpu-demo", "--set", f"{word}=1"),
        ("plan", "-p", "cpu-demo", "--set", f"trainer.output_dir={word}"),
        ("plan", "-p", word),
        ("plan", "-c", word),
        ("train", "--dry-run", "-p", "cpu-demo", "--set", f"trainer.output_dir=a{word}"),
        ("train", "-p", "cpu-demo", "--receipt", word),
        ("status", word),
        ("preflight", "-p", "cpu-demo", "--level", "static", "--facts", word),
        ("plan", f"--{word}"),
        ("lint", word),
        (word,),
    ):
        for output_format in ("text", "json"):
            check(command(*words, "--output-format", output_format))


def run_directory(folder: Path, text: Any) -> Path:
    """A run whose files hold this for every value that a command reads."""
    folder.mkdir(exist_ok=True)
    beat = dict.fromkeys(BEAT, text)
    manifest = {"restarts": text, "trainer_pid": text, "hostname": os.uname().nodename}
    row = {"step": 7, "train/loss": text, "eval/loss": text, "train/tokens_per_sec": text}
    for name, content in {
        "manifest.json": manifest,
        "heartbeat_rank0.jsonl": beat,
        "metrics.jsonl": row,
        "outcome.json": {"status": text, "message": text},
    }.items():
        (folder / name).write_text(json.dumps(content) + "\n")
    return folder


@FEW
@given(
    value=HOSTILE | st.none() | st.booleans() | st.integers() | st.floats() | st.just([]) | st.just({"a": 1})
)
@example(value=ALL)
@example(value=10**400)
@example(value=float("inf"))
def test_what_a_run_directory_says(value, command, tmp_path):
    name = as_file_name(value) if isinstance(value, str) else "run"
    folder = run_directory(tmp_path / name, value)
    for output_format in ("text", "json"):
        check(command("status", folder, "--output-format", output_format))
        (folder / "outcome.json").unlink(missing_ok=True)  # then the heartbeat tells


@pytest.mark.parametrize("value", [ALL, 3, float("nan"), None, []], ids=repr)
def test_live_lines(value, tmp_path, capsys, monkeypatch):
    watch = LiveReader(tmp_path, -1)
    run_directory(tmp_path, value)
    view = make_view(watch, "json")
    view.refresh()
    view.close()
    output = capsys.readouterr().err
    assert "step 7/" in output
    assert only_prints(output), output
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    bar = ProgressView(LiveReader(tmp_path, -1))
    bar.refresh()
    bar.close()
    assert MARK not in [line.strip()[: len(MARK)] for line in out.getvalue().split("\n")]
    assert "\x1b]0" not in out.getvalue()


@FEW
@given(text=HOSTILE)
@example(text=ALL)
def test_the_end_of_a_run(text, command, tmp_path):
    words = ("-p", "cpu-demo", "--set", "trainer.output_dir=run", "--resume", "auto")
    folder = run_directory(tmp_path / "run", text)
    resolved = _resolved(command, tmp_path, words)
    (folder / "resolved.json").write_text(json.dumps(resolved))
    for outcome in ({"status": "finished", "message": text}, {"status": "finished", "step": 3}):
        (folder / "outcome.json").write_text(json.dumps(outcome))
        answer = command("train", *words).passed()
        check(answer)


def _resolved(command: Callable[..., Any], folder: Path, words: tuple[str, ...]) -> Any:
    from launcher.commands.selection import Selection
    from neobert.config import to_dict

    overrides = ("trainer.output_dir=run", "trainer.resume_from_checkpoint=auto")
    return to_dict(Selection("cpu-demo", (), overrides).require().config)


def test_what_a_child_prints(tmp_path, monkeypatch, capsys):
    """Line breaks of its own stay, escape sequences and workflow commands do not."""
    source = f"import sys\nsys.stderr.write('first\\nsecond\\x1b[31m\\n::error::{MARK}\\n')\nsys.exit(3)\n"
    (tmp_path / "noisy_child.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ProjectError):
        run_json_child("noisy_child", {}, doing="", hint="")
    output = capsys.readouterr().err
    assert output == "first\nsecond\N{REPLACEMENT CHARACTER}[31m\n: :error::INJECTED\n"


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_recorded_facts(output_format, command, tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(_spoilt(json.loads(FACTS.read_text()))))
    answer = command("preflight", "-p", "h200-prod", "--facts", path, "--output-format", output_format, "-v")
    assert "GPU003" in answer.out
    check(answer)


def _spoilt(content: Any) -> Any:
    """The same with hostile text after every text but those of a few choices."""
    if isinstance(content, dict):
        return {name: value if name in ENUMERATED else _spoilt(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_spoilt(value) for value in content]
    return content + ALL if isinstance(content, str) and content else content


@given(text=st.text(), has_colour=st.booleans())
@example(text=ALL, has_colour=True)
@example(text=" \t::stop-commands::x", has_colour=False)
def test_the_last_look(text, has_colour):
    shown = safe_text(text, has_colour=has_colour)
    assert shown.count("\n") == text.count("\n")
    assert safe_text(shown, has_colour=has_colour) == shown
    if not has_colour:
        assert all(printable(line, keep="\t") == line for line in shown.split("\n"))
        assert not any(line.strip().startswith("::") or "##[" in line for line in shown.split("\n"))


def test_colours_of_one_stream_are_not_written_to_the_other():
    painted = "\x1b[31;1merror\x1b[0m: x"
    assert safe_text(painted, has_colour=True) == painted
    assert safe_text(painted, has_colour=False) == "error: x"
