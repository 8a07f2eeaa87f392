"""The wheel is installed next to distributions that own `launcher`, `profiles` and `validators`."""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from neobert import __version__

ROOT = Path(__file__).parents[2]
COMMON_NAMES = ("launcher", "profiles", "validators")
FOREIGN = "raise ImportError('of another distribution')\n"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment that has the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    for name in COMMON_NAMES:
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(FOREIGN, "utf-8")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", wheel], check=True)
    return packages


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = packages.parents[2] / "bin" / "neobert-launch"
    return subprocess.run(
        [program, *arguments], cwd=packages.parents[2], capture_output=True, text=True, check=False
    )


def test_it_has_no_common_names_at_its_top_level(installed):
    files = (installed / f"neobert_launch-{__version__}.dist-info" / "RECORD").read_text("utf-8").split("\n")
    modules = {line.partition("/")[0] for line in files if ".py," in line or "py.typed" in line}
    assert modules == {"neobert", "neobert_launch"}
    assert {(installed / name / "__init__.py").read_text("utf-8") for name in COMMON_NAMES} == {FOREIGN}


def test_its_imports_are_complete(installed):
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F821",
        str(installed / "neobert"),
        str(installed / "neobert_launch"),
    ]
    assert subprocess.run(ruff, check=False).returncode == 0


@pytest.mark.parametrize("command", [("--help",), ("profiles", "list"), ("plan", "--profile", "cpu-demo")])
def test_a_command_runs(installed, command):
    finished = run(installed, *command)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_its_children_start(installed):
    program = (
        "import subprocess, sys; from neobert.launcher.process.child_start import RUN_MODULE;"
        "from neobert.launcher.probes.gpus import NVML;"
        "subprocess.run([sys.executable, '-P', *RUN_MODULE, 'platform'], check=True);"
        "subprocess.run([*NVML, 'devices'], check=True)"
    )
    python = installed.parents[2] / "bin" / "python"
    subprocess.run([python, "-P", "-c", program], check=True)


def test_nothing_counts_as_shadowed(installed):
    options = ("--profile", "cpu-demo", "--level", "host", "--output-format", "json")
    report = json.loads(run(installed, "preflight", *options).stdout)
    assert {check["id"]: check["status"] for check in report["checks"]}["HST006"] == "pass"


def test_the_python_interface_is_complete(installed):
    program = (
        "import neobert_launch as nl; run = nl.load_run(profile='cpu-demo');"
        "assert run.preflight('static').verdict == 'pass'"
    )
    subprocess.run([installed.parents[2] / "bin" / "python", "-P", "-c", program], check=True)
