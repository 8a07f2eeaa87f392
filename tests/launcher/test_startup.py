"""What the launcher never loads. How fast it starts is measured elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numpy", "datasets", "tokenizers", "accelerate", "safetensors", "pyarrow")
GENEROUS_S = 20
PROBE = """
import json, sys
from launcher.cli.app import run
code = run(sys.argv[1:])
modules = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"code": code, "modules": modules}), file=sys.stderr)
"""


def modules_after(*arguments: str) -> tuple[int, set[str]]:
    child = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        check=True,
    )
    answer = json.loads(child.stderr.splitlines()[-1])
    return answer["code"], set(answer["modules"])


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["lint", "run.yaml"], 0),
        (["plan", "-p", "a100-prod"], 0),
        (["preflight", "-p", "cpu-demo"], 0),
        (["train", "-p", "cpu-demo", "--dry-run"], 0),
        (["rule", "--all"], 0),
        (["profiles", "list"], 0),
    ],
)
def test_nothing_heavy_is_loaded(arguments: list[str], code: int) -> None:
    Path("run.yaml").write_text("profile: a100-prod\n", encoding="utf-8")
    ended, modules = modules_after(*arguments)
    assert ended == code
    assert modules.isdisjoint(HEAVY)


@pytest.mark.e2e
def test_help_loads_neither_pydantic_nor_rich_nor_the_rules() -> None:
    _, modules = modules_after("--help")
    assert modules.isdisjoint(("pydantic", "rich", "yaml", "validators", "profiles", "psutil"))


@pytest.mark.e2e
def test_the_probe_sees_what_is_loaded() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "import numpy\n" + PROBE, "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "numpy" in json.loads(child.stderr.splitlines()[-1])["modules"]
