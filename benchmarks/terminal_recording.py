"""Record the output of a short training run whose trainer is killed once.

    python benchmarks/terminal_recording.py --output docs/measurements

The value is the time of the whole command in seconds. `benchmarks/figures.py` draws the lines; record them
again when a command prints others.
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
        lines, exit_code = record_terminal(Path(folder))
    command = " ".join(["neobert-launch", *COMMAND])
    detail = {"shown": command, "run_file": RUN_FILE, "exit_code": exit_code, "lines": lines}
    total_s, _ = lines[-1]
    write_measurement(chosen.output / "terminal-recording.json", total_s, "s", None, detail)
    return exit_code


def record_terminal(folder: Path) -> tuple[list[tuple[float, str]], int]:
    """Run the command in a folder; return the time and text of each line, and the exit code."""
    (folder / "run.yaml").write_text(RUN_FILE, encoding="utf-8")
    environment = {**os.environ, "FORCE_COLOR": "1", "NO_COLOR": ""}
    command = [sys.executable, "-m", "launcher", *COMMAND]
    lines, start_s, is_killed = [], time.perf_counter(), False
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            folded = fold(line.rstrip("\n").replace(str(folder), "~"), WIDTH)
            elapsed_s = round(time.perf_counter() - start_s, 2)
            lines += [(elapsed_s, shown) for shown in folded.split("\n")]
            if KILL_AFTER.search(line) and not is_killed:
                is_killed = True
                os.kill(int(read_json(folder / "runs/demo/manifest.json")["trainer_pid"]), signal.SIGKILL)
    return lines, child.returncode


if __name__ == "__main__":
    sys.exit(main())
