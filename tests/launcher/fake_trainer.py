"""A trainer that pretends: it writes what the real one writes, and ends as FAKE_TRAINER says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from neobert.errors import ProjectError, write_error_file

BEHAVIOUR = os.environ["FAKE_TRAINER"]
MAX_STEPS = 3
NUM_CHATTY_STEPS = 400
ENDS = {signal.SIGTERM: ("preempted", 75), signal.SIGINT: ("interrupted", 130)}

run_dir = Path(sys.argv[1]).parent
received: list[int] = []


def note(number: int, frame: object) -> None:
    received.append(number)


def append(name: str, row: dict[str, object]) -> None:
    with (run_dir / name).open("a") as file:
        file.write(json.dumps(row) + "\n")


def take_step(step: int) -> None:
    row = {"step": step, "train/loss": 9.0 - step, "train/tokens_per_sec": 1000.0, "eval/loss": 8.0 - step}
    append("metrics.jsonl", row)
    beat = {"ts_utc": "2026-01-01T00:00:00+00:00", "phase": "train", "step": step, "max_steps": MAX_STEPS}
    append(
        "heartbeat_rank0.jsonl", {**beat, "tokens_total": 100 * step, "eta_s": 1.0, "work_at_risk_min": 0.5}
    )


def end(status: str, code: int, step: int, message: str = "") -> None:
    outcome = {"status": status, "exit_code": code, "step": step, "message": message}
    partial = run_dir / f"outcome.{os.getpid()}"  # each rank writes one, while a launcher reads
    partial.write_text(json.dumps(outcome))
    partial.replace(run_dir / "outcome.json")
    sys.exit(code)


def save() -> None:
    (run_dir / "checkpoints" / "3").mkdir(parents=True, exist_ok=True)
    (run_dir / "checkpoints" / "latest").unlink(missing_ok=True)
    (run_dir / "checkpoints" / "latest").symlink_to("3")


def announce_that_signals_are_heeded() -> None:
    (run_dir / f"ready_{os.environ.get('RANK', '0')}").touch()


def wait_for_a_stop() -> None:
    announce_that_signals_are_heeded()
    while not received:
        time.sleep(0.01)
    (run_dir / "received").write_text(" ".join(map(str, received)))


def ignore_everything() -> None:
    announce_that_signals_are_heeded()
    while True:
        time.sleep(0.05)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, note)
    print(f"rank {os.environ.get('RANK', '-')} of {os.environ.get('WORLD_SIZE', '1')} trains {sys.argv[1]}")
    if BEHAVIOUR == "killed early":
        os.kill(os.getpid(), signal.SIGKILL)
    if BEHAVIOUR == "worse":
        for step in range(6):
            row = {"step": 40 * step, "train/loss": 5.0 + step, "train/tokens_per_sec": 1000.0}
            append("metrics.jsonl", row)
        wait_for_a_stop()
        end("preempted", 75, step=200)
    for step in range(MAX_STEPS + 1 if BEHAVIOUR == "finish" else 2):
        take_step(step)
    if BEHAVIOUR == "finish":
        if os.environ.get("RANK", "0") == "0":
            save()
        end("finished", 0, MAX_STEPS)
    if BEHAVIOUR == "chatter":  # more lines than a pipe holds, and then two sessions
        for step in range(2, NUM_CHATTY_STEPS):
            take_step(step)
        if "--again" not in sys.argv:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        end("finished", 0, NUM_CHATTY_STEPS)
    if BEHAVIOUR == "moved":  # by somebody else, who kills it as well
        run_dir.rename("elsewhere")
        time.sleep(5.0)
        os.kill(os.getpid(), signal.SIGKILL)
    if BEHAVIOUR == "stop":
        wait_for_a_stop()
        end(*ENDS[signal.Signals(received[0])], step=1)
    if BEHAVIOUR == "ignore":
        ignore_everything()
    if BEHAVIOUR == "error":
        error = ProjectError("DAT004", "no text is left", "check the source", "corpus.txt", 1)
        write_error_file(error)
        sys.exit(error.exit_code)
    if BEHAVIOUR == "fail":
        end("failed", 4, 1, "the loss is not finite")
    if BEHAVIOUR == "refuse":
        end("failed", 93, 1, "not retrying")
    if BEHAVIOUR == "crash":
        raise RuntimeError("a fault that nobody foresaw")
    if BEHAVIOUR == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
