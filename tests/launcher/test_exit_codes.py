"""Bad input: one clear message, the right exit code, the same one in every format, and no traceback."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.errors import STOPPED

FORMATS = ("text", "json", "github", "sarif", "junit")


@dataclass(frozen=True)
class Bad:
    """A file that cannot be meant, the code that says so, and what the command exits with."""

    content: bytes
    code: str
    exit_code: int
    says: str = ""


GOOD = b"profile: cpu-demo\n"
PROD = b"profile: a100-prod\n"
BAD = {
    "unknown-key": Bad(GOOD + b"trainer:\n  save_step: 5\n", "CFG001", 1, "save_steps"),
    "duplicate-key": Bad(GOOD + b"trainer:\n  save_steps: 5\n  save_steps: 0\n", "CFG002", 1, "twice"),
    "wrong-type": Bad(GOOD + b"trainer:\n  max_steps: many\n", "CFG003", 1, "integer"),
    "renamed-key": Bad(GOOD + b"trainer:\n  max_ckpt: 3\n", "CFG007", 1, "save_total_limit"),
    "empty": Bad(b"", "CFG011", 2, "empty"),
    "no-yaml": Bad(b"trainer: [", "CFG011", 2),
    "circular-variables": Bad(GOOD + b"variables:\n  a: $variables.b\n  b: $variables.a\n", "CFG012", 1),
    "unknown-profile": Bad(b"profile: cpu-dmeo\n", "CFG005", 2, "cpu-demo"),
    "failing-rule": Bad(b"profile: a100-prod\ntrainer:\n  save_steps: 0\n", "CKP001", 1),
    "flash-no": Bad(PROD + b"model:\n  flash: false\n", "ATT004", 1, "model.attn_backend"),
}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Bad, Path]:
    case = BAD[request.param]
    path = tmp_path / "run.yaml"
    path.write_bytes(case.content)
    return case, path


def test_lint_exits_alike_in_every_format(bad, command):
    case, path = bad
    for output_format in FORMATS:
        answer = command("lint", path, "--output-format", output_format)
        assert answer.code == case.exit_code, output_format
        assert case.code in answer.out, output_format
        assert "Traceback" not in answer.out + answer.err
    assert case.says in command("lint", path).out
    report = command("lint", path, "--output-format", "json").json
    assert (report["verdict"], report["exit_code"]) == ("fail", case.exit_code)
    finding = next(found for found in report["findings"] if found["code"] == case.code)
    assert finding["file"].startswith((str(path), "profiles", "/"))


def exits_like_lint(case: Bad, path: Path, words: list[str], command: Callable[..., Any]) -> None:
    for output_format in ("text", "json"):
        answer = command(*words, "-c", path, "--output-format", output_format)
        assert answer.code == case.exit_code, output_format
        assert case.code in (answer.out if output_format == "json" else answer.out + answer.err)
        assert "Traceback" not in answer.out + answer.err


@pytest.mark.parametrize("bad", ["unknown-key", "empty", "failing-rule"], indirect=True)
@pytest.mark.parametrize("words", [["preflight", "--level", "static"], ["train", "--dry-run"]])
def test_what_launches_exits_like_lint(words, bad, command):
    exits_like_lint(*bad, words, command)


@pytest.mark.parametrize("words", [["plan"], ["data", "prepare"], ["explain", "seed"]])
@pytest.mark.parametrize("bad", ["unknown-key", "empty", "circular-variables"], indirect=True)
def test_what_judges_nothing_still_refuses_what_cannot_be_read(words, bad, command):
    exits_like_lint(*bad, words, command)


def test_profiles_in_a_circle(command, tmp_path, monkeypatch):
    about = "about:\n  name: {0}\n  kind: smoke\n  intent: A circle.\nextends: {1}\n"
    folder = tmp_path / "own"
    folder.mkdir()
    for name, base in (("first", "second"), ("second", "first")):
        (folder / f"{name}.yaml").write_text(about.format(name, base), encoding="utf-8")
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(folder))
    command("plan", "-p", "first").refused(2, "first -> second -> first")
    (finding,) = command("plan", "-p", "first", "--output-format", "json").json["findings"]
    assert (Path(finding["file"]).name, finding["line"], finding["column"]) == ("second.yaml", 5, 10)


def test_unreadable_outweighs_failed_outweighs_passed(command, run_file):
    good = run_file("profile: cpu-demo\n", "good.yaml")
    failed = run_file("profile: cpu-demo\ntrainer: {save_step: 5}\n", "failed.yaml")
    unreadable = run_file("", "unreadable.yaml")
    assert {command("lint", good, "--output-format", each).code for each in FORMATS} == {0}
    assert command("lint", good, failed).code == 1
    assert command("lint", good, failed, unreadable).code == 2


USAGE = {
    "unknown-option": ["plan", "-p", "cpu-demo", "--profle", "x"],
    "missing-argument": ["explain"],
    "unknown-command": ["plann"],
    "no-number": ["train", "-p", "cpu-demo", "--nnodes", "two"],
    "misplaced-argument": ["preflight", "run"],
    "no-subcommand": ["profiles"],
}


@pytest.mark.parametrize("spelling", [["--output-format", "json"], ["--output_format=json"]])
@pytest.mark.parametrize("words", USAGE.values(), ids=USAGE)
def test_a_command_that_cannot_be_understood_is_one_object_too(words, spelling, command):
    answer = command(*words, *spelling)
    assert (answer.code, answer.json["exit_code"], answer.err) == (2, 2, "")
    (finding,) = answer.json["findings"]
    assert finding["code"] == "usage"
    assert finding["message"]
    assert "`neobert-launch" in finding["hint"]
    assert "--help" in finding["hint"]
    plain = command(*words)
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.startswith("Usage: " if words == ["profiles"] else "error: ")


@pytest.mark.parametrize("words", [[], ["profiles"]])
def test_a_group_without_a_command_prints_its_help(words, command):
    assert command(*words).err.split() == command(*words, "--help").out.split()


def test_a_format_that_torchrun_is_told_is_not_ours(command):
    assert command("train", "--nnodes", "two", "--", "--output-format", "json").out == ""


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_fault_that_nobody_foresaw_is_told_in_every_format(output_format, command, tmp_path, monkeypatch):
    from launcher.commands import lint

    def broken(*_: Any) -> int:
        raise RuntimeError("a fault of its own")

    monkeypatch.setattr(lint, "run", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = command("lint", "run.yaml", "--output-format", output_format)
    assert answer.code == 3
    assert "RuntimeError: a fault of its own" in (answer.err if output_format == "text" else answer.out)
    assert "Traceback" not in answer.out + answer.err


@pytest.mark.parametrize(
    "place", ["~nobody-of-this-name/run", "x" * 400, "a\0b"], ids=["no-home", "too-long", "null"]
)
def test_a_place_that_cannot_be(place, command, run_file):
    path = run_file(json.dumps({"profile": "cpu-demo", "trainer": {"output_dir": place}}))
    for words in (["train"], ["preflight"], ["validate-gpu"]):
        answer = command(*words, "-c", path, "--output-format", "json")
        (finding,) = answer.json["findings"]
        assert (answer.code, finding["code"], finding["path"]) == (1, "unusable-path", "trainer.output_dir")


@pytest.mark.child
def test_text_in_a_home_of_nobody_is_not_there(command, run_file):
    path = run_file("profile: cpu-demo\ndataset: {name: null, path: ~nobody-of-this-name/text}\n")
    answer = command("preflight", "-c", path, "--level", "host")
    assert (answer.code, "DAT001 failed" in answer.out) == (1, True)


def test_a_path_that_the_file_system_refuses_is_told(command):
    command("status", "x" * 400).refused(1, "cannot be used: File name too long [unusable-path]")


def test_a_folder_that_was_removed_under_the_command(command, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    output = f"trainer.output_dir={tmp_path / 'run'}"
    for words in (["train"], ["preflight"], ["data", "prepare"], ["validate-gpu"]):
        command(*words, "-p", "cpu-demo", output).refused(1, "working directory was removed: No such file")
    command("init", "--dataset", "builtin:python-docs").refused(1, "working directory was removed")


def test_a_link_to_a_disk_that_was_purged(command, tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    for words in (["train"], ["preflight", "--level", "host"]):
        answer = command(*words, "-p", "cpu-demo", "trainer.output_dir=runs/new", "--output-format", "json")
        (finding,) = answer.json["findings"]
        assert (answer.code, finding["code"], finding["path"]) == (1, "unusable-path", "trainer.output_dir")
        assert str(tmp_path / "scratch") in finding["message"]
    (tmp_path / "scratch").mkdir()
    assert command("train", "-p", "cpu-demo", "trainer.output_dir=runs/new", "--dry-run").code == 0


def test_a_file_that_cannot_be_looked_at_keeps_no_other_from_being_judged(command, run_file):
    answer = command("lint", "x" * 400, run_file("profile: cpu-demo\ntrainer: {save_step: 5}\n"))
    assert (answer.code, "CFG011" in answer.out, "CFG001" in answer.out) == (2, True, True)


@pytest.mark.child
def test_what_cannot_be_said_at_all_still_has_its_code(run_child):
    with Path("/dev/full").open("wb") as full:
        assert run_child("plann", stdout=full, stderr=full).code == 2


@pytest.mark.parametrize(
    ("module", "output_format"), [("validators", "text"), ("validators", "json"), ("neobert", "text")]
)
@pytest.mark.child
def test_a_foreign_module_in_place_of_ours_is_named(module, output_format, tmp_path):
    foreign = tmp_path / "elsewhere" / module / "__init__.py"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    place = f"import sys; sys.path.insert(0, {str(foreign.parents[1])!r})"
    program = f"{place}; from launcher.__main__ import main; main()"
    words = ["lint", "run.yaml", "--output-format", output_format]
    answer = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (3, "")
    assert f"{module} is imported from {foreign} [HST006]\n  = hint: remove that folder" in answer.stderr


IN_A_CLASS = """
class Interrupted:
    def __set_name__(self, owner, name):
        signal.raise_signal(number)
type("Section", (), {"field": Interrupted()})
"""


@pytest.mark.child
@pytest.mark.parametrize("interrupts", ["signal.raise_signal(number)", IN_A_CLASS])
@pytest.mark.parametrize(
    ("number", "imports", "code", "message"),
    [
        (2, "launcher.cli.app", 130, "Ctrl-C: stopped before there was a result [interrupted]"),
        (2, "validators.rules", 130, f"Ctrl-C: {STOPPED} [interrupted]"),
        (15, "validators.rules", 143, f"SIGTERM: {STOPPED} [terminated]"),
    ],
)
def test_a_stop_during_imports_is_reported_as_one(number, imports, code, message, interrupts):
    """Python 3.11 raises RuntimeError for what interrupts the creation of a class."""
    program = f"""if True:
        import signal, sys
        number = {number}
        class Interrupt:
            def find_spec(self, name, path, target=None):
                if name == "{imports}":
                    exec({interrupts!r}, globals())
        sys.meta_path.insert(0, Interrupt())
        from launcher.__main__ import main
        main()
    """
    command = [sys.executable, "-c", program, "plan", "-p", "cpu-demo"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (code, "", f"error: {message}\n")
