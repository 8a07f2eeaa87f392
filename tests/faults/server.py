"""Run the scripts beside this file as processes forked from one that has imported what they need.

python -m tests.faults.server reads lines of JSON, {"script", "arguments", "output", "errors", "folder"}, and
answers each with the script's exit code. Importing takes longer than most of the scripts do.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from typing import Any

from tests.faults import nursery

PATIENCE_S = 1200


def main() -> None:
    for line in sys.stdin:
        print(run(json.loads(line)), flush=True)


def run(asked: dict[str, Any]) -> int:
    gc.freeze()
    pid = os.fork()
    if pid:
        return nursery.end(pid)
    signal.alarm(PATIENCE_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in ((1, asked["output"]), (2, asked["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ["TMPDIR"] = tempfile.tempdir = asked["folder"]
    sys.argv = [asked["script"], *asked["arguments"]]
    code = code_of(f"tests.faults.{asked['script']}")
    sys.stdout.flush()
    os._exit(code)


def code_of(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    main()
