"""Fill a small file system while a run trains on it, then make room; say what became of the run.

python -m tests.faults.disk_full FOLDER

FOLDER gets a file system of its own in memory, in the mount namespace of this process alone. Prints a JSON
object.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from neobert.runfiles.checkpoint.folders import checkpoint_steps, find_checkpoint
from tests.faults import nursery
from tests.training.conftest import exact_lines, write_corpus, write_run

RUN = {"trainer": {"save_steps": 2, "save_total_limit": 0}}
SIZE = "900k"  # a checkpoint takes about 200 KiB
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def enter_own_mounts() -> None:
    """Do as `unshare --map-root-user --mount`, which a fork of a warm interpreter cannot be started by."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, content in maps.items():
        Path("/proc/self", name).write_text(content, encoding="utf-8")


def main(folder: Path) -> None:
    enter_own_mounts()
    corpus = write_corpus(folder)
    undisturbed = write_run(folder / "undisturbed", corpus, RUN)
    nursery.end(nursery.begin(undisturbed))
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(small)], check=True)
    run_dir = write_run(small / "run", corpus, RUN)
    root = run_dir / "checkpoints"
    report: dict[str, Any] = {"full": nursery.end(nursery.begin(run_dir))}
    report["outcome"] = json.loads((run_dir / "outcome.json").read_text(encoding="utf-8"))
    report["kept"], found = checkpoint_steps(root), find_checkpoint(root, "auto")
    report["left"] = sorted(path.name for path in root.iterdir())
    report["newest"] = None if found is None else found[1].step
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    report["with room"] = nursery.end(nursery.begin(run_dir))
    report["is_equal"] = exact_lines(run_dir) == exact_lines(undisturbed)
    report["steps"] = checkpoint_steps(root)
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
