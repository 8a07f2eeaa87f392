"""A machine that says of itself what a test has it say: recorded facts in place of the probes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from launcher.preflight import levels
from launcher.probes.probe import Probe, Subject, UnsupportedError
from launcher.process import trainer_process
from validators.facts import Facts
from validators.facts_io import facts_from_json

HEALTHY = Path(__file__).parents[1] / "validators" / "fixtures" / "facts.json"
RUN = ("-p", "a100-prod", "--set", "trainer.output_dir=run")
CLEAN = {"is_repository": True, "sha": "a" * 40, "is_dirty": False, "diff_sha256": "", "diff_saved": False}
# What the run directory holds is looked at as it is.
REAL = ("output", "resume")
Answer = tuple[int, Any]


def altered(changes: dict[str, Any]) -> Facts:
    """Recorded facts with some values, by dotted paths, put in their place."""
    tree = json.loads(HEALTHY.read_text(encoding="utf-8"))
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = tree
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[int(last) if isinstance(place, list) else last] = value
    return facts_from_json(json.dumps(tree))


def become(monkeypatch: pytest.MonkeyPatch, facts: Facts) -> None:
    """Have every probe answer from `facts`; a group that is missing there is unsupported."""

    def answering(probe: Probe) -> Probe:
        def measure(_: Subject) -> Any:
            found = getattr(facts, probe.group)
            if found is None:
                raise UnsupportedError(facts.reason_missing(probe.group))
            return found

        return probe if probe.group in REAL else replace(probe, measure=measure, children=None)

    for name in ("HOST_PROBES", "GPU_PROBES", "HEAVY_PROBES"):
        monkeypatch.setattr(levels, name, tuple(map(answering, getattr(levels, name))))


def with_fake_trainer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Launch from `folder` a trainer that finishes at once and needs none of its packages."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", "fake_trainer")
    monkeypatch.setattr(trainer_process, "TRAINER_PACKAGES", ())
    monkeypatch.setattr(trainer_process, "COMPILER_PACKAGES", ())
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "launcher"))
    monkeypatch.setenv("FAKE_TRAINER", "finish")


def launch(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command line here and read its JSON; text where it prints none."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app.run([*arguments, "--output-format", "json"])
        out = capsys.readouterr().out
        return code, json.loads(out)

    return run
