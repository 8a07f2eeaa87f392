"""What the launcher imports, and how much. `benchmarks/startup.py` measures the time that it takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numpy", "datasets", "tokenizers", "accelerate", "safetensors", "pyarrow")
OWN = ("neobert", "launcher", "profiles", "validators")
GENEROUS_S = 120
PROBE = """
import json, sys
from launcher.cli.app import run
code = run(sys.argv[1:])
modules = sorted(sys.modules)
print(json.dumps({"code": code, "modules": modules}), file=sys.stderr)
"""


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


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
@pytest.mark.parametrize("command", ["preflight", "train --dry-run"])
def test_nothing_heavy_is_loaded(command):
    code, modules = modules_after(*command.split(), "-p", "cpu-demo")
    assert code == 0
    assert packages(modules).isdisjoint(HEAVY)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "absent", "max_own", "max_others"),
    [
        (["--help"], ("pydantic", "rich", "yaml", "validators", "profiles", "psutil"), 33, 160),
        (["lint", "run.yaml"], ("pydantic", "rich", "psutil", "logging", "email", "statistics"), 255, 190),
    ],
)
def test_few_modules_are_imported(arguments, absent, max_own, max_others):
    """Each module takes half a millisecond, and most of them are needed by few commands."""
    Path("run.yaml").write_text("profile: a100-prod\n", encoding="utf-8")
    _, modules = modules_after(*arguments)
    own = {name for name in modules if name.partition(".")[0] in OWN}
    assert packages(modules).isdisjoint({*HEAVY, *absent})
    assert not {name for name in own if name.startswith("validators.facts_")}, "dataclasses of measurements"
    assert len(own) <= max_own
    assert len(modules - own) <= max_others


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("module", "request_of"),
    [
        ("neobert.encoding", {"folder": "model", "texts": "a.jsonl", "output": "a.npy"}),
        ("neobert.evaluation.retrieval", {"data": "absent"}),
        (
            "neobert.evaluation.likelihood",
            {"evaluation": "blimp", "data": "a.jsonl", "settings": {"folder": "model", "output": "a.npy"},
             "pairs_per_paradigm": None},
        ),
    ],
)  # fmt: skip
def test_unusable_input_is_refused_before_torch_is_imported(module, request_of):
    Path("a.jsonl").write_text('{"body": "x"}\n', encoding="utf-8")
    Path("request.json").write_text(json.dumps(request_of), encoding="utf-8")
    Path("torch.py").write_text("raise SystemExit('torch is imported')\n", encoding="utf-8")
    child = subprocess.run(
        [sys.executable, "-m", module, "request.json"], capture_output=True, text=True, timeout=GENEROUS_S
    )
    assert child.returncode in (1, 2), child.stderr
    assert "hint:" in child.stderr
    assert "torch is imported" not in child.stderr


@pytest.mark.e2e
def test_the_probe_sees_what_is_loaded():
    child = subprocess.run(
        [sys.executable, "-c", "import numpy\n" + PROBE, "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "numpy" in json.loads(child.stderr.splitlines()[-1])["modules"]


@pytest.mark.e2e
@pytest.mark.parametrize("is_own", [False, True])
def test_a_folder_with_the_name_of_a_package_is_not_imported(is_own, tmp_path):
    """`python -m` searches the current directory first, before any line of ours runs."""
    for name in ("launcher",) if is_own else ("neobert", "profiles", "validators"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('another package')\n")
    command = [sys.executable, "-m", "launcher", "plan", "-p", "cpu-demo"]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=GENEROUS_S)
    assert (child.returncode, "another package" in child.stderr) == (int(is_own), is_own), child.stderr
