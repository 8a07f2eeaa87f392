"""Output of a short training run whose trainer is killed once, with the time of each line.

    python benchmarks/terminal_recording.py --output docs/measurements

`benchmarks/figures.py` draws it. The value is the time of the whole command.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measurement import write_measurement

from launcher.rundir.records import read_json
from launcher.terminal.fold import fold

RUN_FILE = """\
profile: cpu-demo
scheduler: {warmup_steps: 4}
trainer: {output_dir: runs/demo, max_steps: 80, save_steps: 20, eval_steps: 40, resume_from_checkpoint: auto}
"""
COMMAND = ("train", "run.yaml")
WIDTH = 116
KILL_AFTER = re.compile(r"step 50/80 ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the measurement")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines, code = record(Path(folder))
        seconds = lines[-1][0]
    shown = " ".join(["neobert-launch", *COMMAND])
    detail = {"shown": shown, "run_file": RUN_FILE, "exit_code": code, "lines": lines}
    write_measurement(chosen.output / "terminal-recording.json", seconds, "s", None, detail)
    return code


def record(folder: Path) -> tuple[list[tuple[float, str]], int]:
    """Run the command in a folder; return seconds and text of each line, and its exit code."""
    (folder / "run.yaml").write_text(RUN_FILE, encoding="utf-8")
    environment = {**os.environ, "FORCE_COLOR": "1", "NO_COLOR": ""}
    command = [sys.executable, "-m", "launcher", *COMMAND]
    lines, started, is_killed = [], time.perf_counter(), False
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            shown = fold(line.rstrip("\n").replace(str(folder), "~"), WIDTH)
            lines += [(round(time.perf_counter() - started, 2), each) for each in shown.split("\n")]
            if KILL_AFTER.search(line) and not is_killed:
                is_killed = True
                os.kill(int(read_json(folder / "runs/demo/manifest.json")["trainer_pid"]), signal.SIGKILL)
    return lines, child.returncode


if __name__ == "__main__":
    sys.exit(main())
