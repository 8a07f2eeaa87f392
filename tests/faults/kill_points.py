"""Kill a session at every point of a save, and of what follows it; say where it went on and how it ended.

python -m tests.faults.kill_points FOLDER

Prints a JSON object: for every point the signal that ended the run, the step that was the newest to verify,
and whether the resumed run's metrics are those of a run that was never disturbed.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neobert.export import folder as export_folder
from neobert.runfiles.checkpoint import folders, manifest
from neobert.training.checkpoint import content, publish, retention, save, tensors
from tests.faults import nursery
from tests.training.conftest import exact_lines, write_corpus, write_run

RUN = {
    "trainer": {"save_steps": 2, "save_total_limit": 2, "eval_steps": 4, "metric_for_best_model": "eval/loss"}
}


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(tensors: Any, path: Path, *_: Any) -> None:
    path.write_bytes(b"\0" * 1000)
    die()


def half_sealed(path: Path, text: str, **_: Any) -> None:
    path.write_bytes(text[: len(text) // 2].encode())
    die()


def only_renamed(path: Path, **_: Any) -> None:
    if path.name.startswith(folders.TRASH):
        die()


# Where it strikes, what is put there in place of the real thing, and which call of it strikes.
POINTS: dict[str, tuple[Any, str, Callable[..., Any], int]] = {
    "nowhere": (save, "apply_retention", die, 10**6),
    "while the snapshot is taken": (tensors.Snapshot, "wait", die, 2),
    "in the weights": (export_folder, "save_file", half_written, 2),
    "in the optimizer's state": (content, "save_file", half_written, 2),
    "before the manifest": (publish, "seal_checkpoint", die, 2),
    "in the manifest": (manifest.Path, "write_text", half_sealed, -2),
    "before the rename": (publish.Path, "rename", die, 1),
    "before it is read back": (publish, "_verify_written", die, 2),
    "before the pointer": (publish, "point_link", die, 3),
    "in the pointer": (publish.Path, "replace", die, 2),
    "before older ones go": (save, "apply_retention", die, 2),
    "while an older one goes": (retention, "remove", die, 0),
    "in what is deleted": (publish.shutil, "rmtree", only_renamed, 0),
}


def main(folder: Path) -> None:
    corpus = write_corpus(folder)
    undisturbed = write_run(folder / "undisturbed", corpus, RUN)
    nursery.end(nursery.begin(undisturbed))
    expected = exact_lines(undisturbed)
    report = {}
    for name in POINTS:
        run_dir = write_run(folder / name, corpus, RUN)
        code = nursery.end(nursery.begin(run_dir, prepare=lambda name=name: plant(name)))
        found = folders.find_checkpoint(run_dir / "checkpoints", "auto")
        report[name] = {
            "ended": code,
            "newest": None if found is None else found[1].step,
            "resumed": nursery.end(nursery.begin(run_dir)),
            "is_equal": exact_lines(run_dir) == expected,
            "left": sorted(path.name for path in (run_dir / "checkpoints").iterdir()),
        }
    print(json.dumps(report))


def plant(name: str) -> None:
    """Have the point strike, in this process, at its n-th call; of write_text at the n-th manifest."""
    owner, attribute, strike, number = POINTS[name]
    real, calls = getattr(owner, attribute), iter(range(10**7))

    def struck(*args: Any, **kwargs: Any) -> Any:
        is_counted = number >= 0 or args[0].name == manifest.FILE_NAME
        if is_counted and next(calls) >= abs(number):
            strike(*args, **kwargs)
        return real(*args, **kwargs)

    setattr(owner, attribute, struck)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
