"""The two commands of this room."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.config import from_dict, to_dict
from neobert.config.schema import TokenizerConfig
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.data.tokenize.train_tokenizer import save_atomically
from neobert.errors import ERROR_FILE_ENV, read_error_file
from neobert.json_program import serve
from tests.data.conftest import Configure


def resolved(configure: Configure, tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "resolved.json"
    path.write_text(json.dumps(to_dict(configure(**changes))), encoding="utf-8")
    return path


def run(module: str, *arguments: object, error_file: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, ERROR_FILE_ENV: str(error_file or "")}
    command = [sys.executable, "-m", f"neobert.data.{module}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_prepare_prints_one_json_report(configure, tmp_path):
    child = run("store.prepare", resolved(configure, tmp_path, dataset__eval_samples=20))
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {
        **prepare(configure(dataset__eval_samples=20)).report,
        "token_ids": {},
    }


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_an_error_is_a_file_for_the_parent_that_asked_and_else_text(configure, tmp_path):
    error_file = tmp_path / "error.json"
    config = resolved(configure, tmp_path, dataset__path="/nowhere/at/all")
    reported = run("store.prepare", config, error_file=error_file)
    assert (reported.returncode, reported.stdout, reported.stderr) == (1, "", "")
    assert read_error_file(error_file).code == "DAT001"
    for nobody in (None, tmp_path / "gone" / "error.json"):
        child = run("store.prepare", config, error_file=nobody)
        assert (child.returncode, child.stdout) == (1, "")
        assert "[DAT001]" in child.stderr
        assert "hint:" in child.stderr
        assert "Traceback" not in child.stderr


@pytest.mark.parametrize(
    ("content", "code", "exit_code"),
    [
        (None, "CFG011", 2),
        ("{", "CFG011", 2),
        ("[1]", "CFG003", 1),
        ('{"model": {"hidden_sise": 3}}', "CFG001", 1),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path, capsys, content, code, exit_code):
    path = tmp_path / "resolved.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert serve(lambda content: to_dict(from_dict(content)), [str(path)]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert code in captured.err


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_one_argument_is_wanted(capsys, arguments):
    assert serve(lambda content: {}, arguments) == 2
    assert "expected one argument" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_a_tokenizer(tokenizer_dir, tmp_path, monkeypatch):
    bundle = load_tokenizer(TokenizerConfig(path=str(tokenizer_dir)))

    def save(self, folder):
        (folder / "tokenizer_config.json").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TokenizerBundle, "save", save)
    with pytest.raises(OSError, match="No space"):
        save_atomically(bundle, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.undo()
    save_atomically(bundle, tmp_path / "out")
    assert load_tokenizer(TokenizerConfig(path=str(tmp_path / "out"))).digest == bundle.digest


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_train_tokenizer_writes_a_folder_that_loads(configure, tmp_path):
    keys = {"tokenizer__algorithm": "bpe", "tokenizer__lowercase": True, "tokenizer__vocab_size": 300}
    config = resolved(configure, tmp_path, tokenizer__path=None, **keys)
    child = run("tokenize.train_tokenizer", config, tmp_path / "out")
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout)
    found = load_tokenizer(TokenizerConfig(path=str(tmp_path / "out")))
    assert report["tokenizer"] == found.summary()
    assert report["tokenizer"].items() >= {"vocab_size": 384, "algorithm": "BPE", "case": "lowered"}.items()
    assert found.num_tokens == 300
    assert report["folder"] == str(tmp_path / "out")


PROGRAM = """
import json, sys
from neobert.config import from_dict
from neobert.data.store.prepare import prepare

config = from_dict(json.load(open({resolved!r})))
print(prepare(config).report["train"]["documents"])
"""


def run_program(how: str, text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of a library's user, from a file or from standard input."""
    file = tmp_path / "program.py"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-" if how == "stdin" else str(file)]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("how", ["stdin", "file"])
def test_a_program_that_no_process_can_import_is_told_so(how, configure, tmp_path):
    """The children of such a program die, or wait for their parent, which waits for them."""
    several = resolved(configure, tmp_path, dataset__num_proc=2)
    child = run_program(how, PROGRAM.format(resolved=str(several)), tmp_path)
    assert (child.returncode, child.stdout) == (1, "")
    error = child.stderr.strip().splitlines()[-2:]
    assert "ended before their first batch" in error[0]
    assert "[DAT009]" in error[0]
    assert "set dataset.num_proc to 1" in error[1]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_program_from_standard_input_prepares_by_itself(configure, tmp_path):
    alone = resolved(configure, tmp_path, dataset__num_proc=1)
    child = run_program("stdin", PROGRAM.format(resolved=str(alone)), tmp_path)
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) > 0
