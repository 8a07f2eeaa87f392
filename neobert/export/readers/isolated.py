"""Reader process that cannot import this project: `python -I isolated.py READER FOLDER WORK_DIR`.

READER is the name of another file in this folder. It reads texts.json in WORK_DIR; outputs.npz and
versions.json are written there. No file in this folder imports this project.
"""

import importlib.metadata
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = ("neobert", "launcher", "profiles", "validators")


class NotInstalled:
    """Import hook that hides this project's packages."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        """Raise ModuleNotFoundError for packages of this project; return None for all others."""
        if name.partition(".")[0] in PROJECT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(reader: str, folder: str, work_dir: str) -> None:
    """Run a reader on a folder; write its outputs and the versions of its libraries to `work_dir`."""
    sys.meta_path.insert(0, NotInstalled())
    texts = json.loads(Path(work_dir, "texts.json").read_text(encoding="utf-8"))
    module = runpy.run_path(str(Path(__file__).with_name(f"{reader}.py")))
    outputs = module["read"](folder, texts)
    np.savez(Path(work_dir, "outputs.npz"), **outputs)
    versions = {name: importlib.metadata.version(name) for name in module["DISTRIBUTIONS"]}
    Path(work_dir, "versions.json").write_text(json.dumps(versions), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
