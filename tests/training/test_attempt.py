"""A session that a later launch has replaced, as that of a lost node: it changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from neobert.errors import EXIT_DO_NOT_REQUEUE, ProjectError
from neobert.runfiles.attempt import CODE, FILE, TOKEN_ENV
from neobert.training.checkpoint import publish
from neobert.training.loop import session, steps
from tests.training.conftest import train

EVERY_STEP = {"trainer": {"save_steps": 3, "logging_steps": 1, "metric_for_best_model": "eval/loss"}}
OWN = ("heartbeat_rank0.jsonl", "logs/rank_0.stacks")
"""Files that tell of a process, and not of the run."""


def take_over(run_dir: Path, token: str) -> None:
    (run_dir / FILE).write_text(f'{{"token": "{token}"}}')


def content(run_dir: Path) -> dict[str, Any]:
    """Return what the run directory holds; a partly written checkpoint is not of the run."""
    paths = [path for path in sorted(run_dir.rglob("*")) if not any(p.startswith(".tmp") for p in path.parts)]
    names = {str(path.relative_to(run_dir)): path for path in paths}
    return {name: _fingerprint(path) for name, path in names.items() if name not in OWN}


def _fingerprint(path: Path) -> Any:
    if path.is_symlink():
        return path.readlink()
    return path.stat().st_ino if path.is_dir() else path.read_bytes()


# Where the later launch begins: the function before which it does, and the call of it.
MOMENTS = {
    "before a step": (steps, "run_step", 7),
    "during a save": (publish, "seal_checkpoint", 1),
    "between the rename and the link": (publish, "_verify_written", 1),
    "after an evaluation": (session, "evaluate", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_replaced_session_changes_nothing(moment, make_run, monkeypatch):
    run_dir, (module, name, number) = make_run(**EVERY_STEP), MOMENTS[moment]
    monkeypatch.setenv(TOKEN_ENV, "first")
    take_over(run_dir, "first")
    real, calls, before = getattr(module, name), [0], {}

    def replaced(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        calls[0] += 1
        if calls[0] == number:
            take_over(run_dir, "second")
            before.update(content(run_dir))
        return result

    monkeypatch.setattr(module, name, replaced)
    with pytest.raises(ProjectError) as refusal:
        train(run_dir)
    assert (refusal.value.code, refusal.value.exit_code) == (CODE, EXIT_DO_NOT_REQUEUE)
    after = content(run_dir)
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()


def test_a_session_of_a_replaced_launch_does_not_begin(make_run, monkeypatch):
    run_dir = make_run()
    monkeypatch.setenv(TOKEN_ENV, "first")
    take_over(run_dir, "second")
    (run_dir / "outcome.json").write_text("{}")
    before = content(run_dir)
    with pytest.raises(ProjectError, match="taken over"):
        train(run_dir)
    assert content(run_dir) == before


def test_the_current_session_trains(make_run, monkeypatch):
    run_dir = make_run()
    monkeypatch.setenv(TOKEN_ENV, "first")
    take_over(run_dir, "first")
    assert train(run_dir) == 0
