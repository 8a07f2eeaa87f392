"""A run that is killed at random times, compared with an undisturbed one.

    setsid python benchmarks/soak.py WORK --minutes 20 --output DIR > soak.log 2>&1 &     # on two GPUs
    python benchmarks/soak.py WORK --tiny --minutes 3                                     # on any machine

NeoBERT-250M, profile h200-prod on Python's own documentation, through `neobert-launch train --resume auto`
and its watchdog. Three kinds of faults: SIGKILL to the trainer, after which the watchdog restarts it; SIGTERM
to the launcher; SIGKILL to the launcher. Most occur during training, some at the start of a session. On GPUs,
which may be one shared device, the undisturbed run trains at the same time, and then a second time if time
allows: the difference of these two is the noise of the kernels. On a CPU it runs first, and the curves must
be bit-exact; with --deterministic on a GPU too. SIGTERM ends the soak early, with a verdict on the steps so
far; the same command continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import soak_judge
import torch
from measurement import write_measurement
from soak_run import (
    FULL,
    POLL_S,
    TINY,
    Beside,
    Run,
    await_end,
    is_alive,
    runs,
    tell,
    write_profile,
)
from soak_trainer import GIVEN

from launcher.rundir.records import last_beat, last_record, read_json
from neobert.errors import EXIT_PREEMPTED

STATE = "soak-state.json"
EARLY_SHARE = 0.2
BOUND = 0.005
KINDS = {
    "kill the trainer": ("trainer", signal.SIGKILL),
    "stop the launcher": ("launcher", signal.SIGTERM),
    "kill the launcher": ("launcher", signal.SIGKILL),
}


@dataclass
class Soak:
    """Faults so far, and the limits of the soak."""

    work: Path
    seed: int
    life_s: float
    limit_s: float
    strikes: list[dict[str, Any]] = field(default_factory=list)
    spent_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    is_asked_to_stop: bool = False
    known_pid: int | None = None

    def remember(self) -> None:
        state = {"strikes": self.strikes, "spent_s": self.spent_s, "faults": self.faults}
        partial = self.work / f".{STATE}"
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(self.work / STATE)

    def recall(self) -> None:
        state = read_json(self.work / STATE)
        self.strikes, self.faults = state.get("strikes", []), state.get("faults", [])
        self.spent_s = state.get("spent_s", 0.0)

    def sleep(self, disturbed: Run, beside: Beside) -> bool:
        """Sleep briefly; return whether the soak continues."""
        started_s = time.monotonic()
        time.sleep(POLL_S)
        beside.go_on()
        self.spent_s += time.monotonic() - started_s
        return not (self.is_asked_to_stop or self.spent_s > self.limit_s or disturbed.code is not None)


def main() -> int:
    asked = parse()
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    has_gpu = torch.cuda.device_count() > 0 and not asked.tiny
    soak = Soak(work, asked.seed, asked.life or (4.0 if asked.tiny else 90.0), asked.minutes * 60)
    soak.recall()

    def hear(*_: object) -> None:
        soak.is_asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)
    write_profile(work, asked)
    disturbed, others = runs(work, has_gpu)
    beside = Beside(others if has_gpu else others[:1])
    if not has_gpu:
        beside.go_on()
        while beside.runs[0].is_going_on and not soak.is_asked_to_stop:
            time.sleep(POLL_S)
    disturb(soak, disturbed, beside)
    wait_until_compared(soak, disturbed, beside)
    return conclude(soak, asked, disturbed, beside.runs, is_exact=not has_gpu or asked.deterministic)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the disturbed run")
    parser.add_argument("--steps", type=int, help="max_steps of all runs; default 3000, tiny 1500")
    parser.add_argument("--kernels", default="triton", help="model.kernel_backend on a GPU")
    parser.add_argument("--life", type=float, help="longest life of a session from its first step on, in s")
    parser.add_argument("--seed", type=int, default=0, help="of the strikes")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="only kernels that add in a fixed order: curves are equal",
    )
    parser.add_argument("--tiny", action="store_true", help="a dry run on any machine")
    parser.add_argument("--output", type=Path, help="folder of soak.json")
    return parser.parse_args()


def disturb(soak: Soak, run: Run, beside: Beside) -> None:
    """Launch, inject a fault and launch again, until the run has finished or the time is over."""
    while not (soak.is_asked_to_stop or soak.spent_s > soak.limit_s or run.is_finished):
        if run.code is not None or run.launcher is None:
            await_end(run.trainer)
            run.launch()
        strike = strike_once(soak, run, beside)
        if strike is None and run.code not in (None, 0):
            tail = run.folder.with_suffix(".log").read_text(errors="replace")[-1500:]
            soak.faults.append(f"the launcher ended with {run.code} without a fault: {tail}")
            break
    soak.remember()
    tell(f"disturbed: {len(soak.strikes)} strikes, step {run.step}, {soak.spent_s:.0f} s")


def draw(seed: int, number: int, life_s: float) -> tuple[str, bool, float]:
    """Draw the kind of a fault, whether it occurs while a session starts, and its delay."""
    chance = random.Random(f"{seed} {number}")
    kind, is_early = chance.choice(list(KINDS)), number > 0 and chance.random() < EARLY_SHARE
    return kind, is_early, chance.uniform(0, life_s / 4 if is_early else life_s)


def strike_once(soak: Soak, run: Run, beside: Beside) -> dict[str, Any] | None:
    """Wait for the time of this fault and inject it; None if the soak or the run ends before it."""
    kind, is_early, delay_s = draw(soak.seed, len(soak.strikes), soak.life_s)
    while not has_begun(run, soak.known_pid, is_early):
        if not soak.sleep(run, beside):
            return None
    struck_at_s = soak.spent_s + delay_s
    while soak.spent_s < struck_at_s:
        if not soak.sleep(run, beside):
            return None
    return strike(soak, run, kind, is_early)


def has_begun(run: Run, known_pid: int | None, is_early: bool) -> bool:
    """Return whether a new trainer has started since the last fault, or has done a step."""
    pid = run.trainer
    if pid is None or pid == known_pid or not is_alive(pid):
        return False
    return is_early or last_record(run.folder / GIVEN).get("pid") == pid


def strike(soak: Soak, run: Run, kind: str, is_early: bool) -> dict[str, Any]:
    """Send the signal, record the step, and wait for the launcher's end."""
    who, number = KINDS[kind]
    pid, beat = run.trainer, last_beat(run.folder, 0)
    assert pid is not None
    assert run.launcher is not None
    struck = {
        "kind": kind,
        "pid": pid,
        "is_early": is_early,
        "at_s": round(soak.spent_s, 1),
        "step": run.step,
        "phase": beat.get("phase"),
        "checkpoint_step": beat.get("last_checkpoint_step"),
        "checkpoint_age_s": beat.get("last_checkpoint_age_s"),
        "in_a_save": any((run.folder / "checkpoints").glob(".tmp-*")),
    }
    soak.known_pid = pid
    os.kill(pid if who == "trainer" else run.launcher.pid, number)
    if who == "launcher":
        started_s = time.monotonic()
        code = run.launcher.wait()
        await_end(pid)
        struck["took_s"] = round(time.monotonic() - started_s, 1)
        soak.spent_s += struck["took_s"]
        if number == signal.SIGTERM and code not in (0, EXIT_PREEMPTED):
            soak.faults.append(f"after SIGTERM, the launcher ended with {code}")
    soak.strikes.append(struck)
    soak.remember()
    tell(f"strike {len(soak.strikes)}: {json.dumps(struck)}")
    return struck


def wait_until_compared(soak: Soak, disturbed: Run, beside: Beside) -> None:
    """Wait until the undisturbed run reaches the step of the other, then stop all runs."""
    disturbed.end()
    first = beside.runs[0]
    while first.is_going_on and first.step < disturbed.step and not soak.is_asked_to_stop:
        time.sleep(POLL_S)
    beside.end()


def conclude(
    soak: Soak, asked: argparse.Namespace, disturbed: Run, others: list[Run], *, is_exact: bool
) -> int:
    """Write the measurement and print the verdict; return 0 if all checks hold."""
    logging_steps = (TINY if asked.tiny else FULL)["trainer"]["logging_steps"]
    found = soak_judge.judge(disturbed.folder, others[0].folder, soak.strikes, logging_steps)
    bound, value = 0.0 if is_exact else BOUND, found["largest_smoothed"]
    faults = [*soak.faults, *found.pop("faults")]
    if not soak.strikes:
        faults.append("nothing was struck")
    if value is None or value > bound:
        faults.append(f"the curves are {value} apart, the bound is {bound}")
    count = {kind: sum(strike["kind"] == kind for strike in soak.strikes) for kind in KINDS}
    detail = {
        "faults": faults,
        "minutes": soak.spent_s / 60,
        "is_finished": disturbed.is_finished,
        "strikes_by_kind": count,
        "restarts_by_the_watchdog": soak_judge.restarts(disturbed.folder),
        "noise": soak_judge.noise([other.folder for other in others]),
        "deterministic": is_exact,
        **found,
    }
    if asked.output:
        unit = "largest relative difference of the smoothed loss"
        write_measurement(asked.output / "soak.json", value, unit, bound, detail)
    shown = {name: each for name, each in detail.items() if name not in ("losses", "strikes")}
    tell(json.dumps(shown, indent=1))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
