"""Weak scaling of the real training step over the GPUs of one host: N GPUs compared with one, in one run.

    python benchmarks/scaling.py WORK_DIR                     # all GPUs, both modes, into scaling-Ngpu.json
    python benchmarks/scaling.py WORK_DIR --counts 2 4 --kernels triton --rounds 5 --output DIR
    python benchmarks/scaling.py WORK_DIR --microbatches 2    # as h200-prod on two: its batch is 256 rows
    python benchmarks/scaling.py WORK_DIR --rows 32           # half the work between two exchanges
    python benchmarks/scaling.py WORK_DIR --tiny --counts 2   # a dry run on any machine

NeoBERT-250M, packed 1024, one microbatch of 64 rows, T = 65,536, a device: h200-prod on four. Every team of
processes is started and compiled once. The rounds alternate between the teams, in both directions, while the
others are idle, so that all run at the same temperature and power limit, after --soak steps that are not
counted. "apart" runs all GPUs at once without exchange: the cost of the slowest GPU and of the host. At the
end three steps of each team are profiled: the time of collectives, and their time without concurrent kernels.
Figure: tokens/s of N GPUs over N times those of the first GPU alone, the median of rounds, in the better
mode.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from made_up_run import FULL, PACKED_LENGTH, TINY, Size, run_config, write_run, write_text
from measurement import write_measurement
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from neobert.config import from_dict, to_dict
from neobert.data.store.prepare import prepare
from neobert.parallel import World
from neobert.train import read_config
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from neobert.training.state.trainer import Trainer

TARGET = 0.97
ROWS_OF_H200_PROD = 64
TEXT_TOKENS = 30_000_000
"""No team reaches the end of the epoch, whose last step has fewer tokens."""
MODES = ("replicated", "fsdp2")
ANSWER = "answer "
ENOUGH_STEPS = 1_000_000
MIB = 2**20

Chosen = argparse.Namespace


@dataclass(frozen=True)
class Team:
    """Processes that run together, and their name."""

    name: str
    ranks: tuple[subprocess.Popen[str], ...]

    def wait_for_start(self) -> None:
        print(self.name, *(answer_of(rank) for rank in self.ranks), flush=True)

    def go(self, soak: int, steps: int, kind: str = "time") -> list[dict[str, Any]]:
        for rank in self.ranks:
            assert rank.stdin is not None
            print(soak, steps, kind, file=rank.stdin, flush=True)
        return [answer_of(rank) for rank in self.ranks]


def answer_of(rank: subprocess.Popen[str]) -> dict[str, Any]:
    assert rank.stdout is not None
    for line in rank.stdout:
        if line.startswith(ANSWER):
            return dict(json.loads(line.removeprefix(ANSWER)))
    raise SystemExit(f"a rank of {rank.args} ended; its output is in WORK_DIR/*/rank*.txt")


def start(work: Path, name: str, devices: list[int], mode: str, size: Size, chosen: Chosen) -> Team:
    """Start a team of ranks, one per device; each compiles its step and reports when it is done."""
    run_dir = work / f"{name}-{time.time_ns()}"
    content = to_dict(run_config(work, run_dir, size, steps=ENOUGH_STEPS, **kernels_of(chosen)))
    trainer = {**content["trainer"], "gradient_accumulation_steps": chosen.microbatches}
    distributed = {"nproc_per_node": len(devices), "mode": mode}
    write_run(run_dir, from_dict({**content, "trainer": trainer, "distributed": distributed}))
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(devices))}
    ranks = []
    for rank, device in enumerate(devices):
        place = {"CUDA_VISIBLE_DEVICES": str(device)}
        if len(devices) > 1:
            place = {**meeting, "RANK": str(rank), "LOCAL_RANK": str(device)}
        with (run_dir / f"rank{rank}.txt").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, __file__, str(work), "--child", str(run_dir)],
                    env=os.environ | place | {"LOCAL_WORLD_SIZE": str(len(devices))},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )
    return Team(name, tuple(ranks))


def kernels_of(chosen: Chosen) -> dict[str, str]:
    return {} if chosen.tiny else {"kernel_backend": chosen.kernels}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def child(run_dir: Path) -> None:
    """Train as often and as long as standard input says."""
    config = read_config(run_dir / "resolved.json")
    world = World.of(config)
    make_reproducible(config, world)
    trainer = assemble(config, run_dir, world, Signals(), None)
    try:
        answer({"started": timed_steps(trainer, 3)})
        for line in sys.stdin:
            soak, steps, kind = line.split()
            timed_steps(trainer, int(soak))
            answer((profiled_steps if kind == "profile" else timed_steps)(trainer, int(steps)))
    finally:
        trainer.batches.close()


def answer(content: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(content), flush=True)


def timed_steps(trainer: Trainer, count: int) -> dict[str, Any]:
    """Run steps; return the tokens/s of all ranks and the milliseconds per step."""
    wait(trainer)
    before, started_s = trainer.progress.tokens_total, time.perf_counter()
    for _ in range(count):
        run_step(trainer)
    wait(trainer)
    took_s = time.perf_counter() - started_s
    is_on_gpu = trainer.world.is_on_gpu
    return {
        "tokens_per_s": (trainer.progress.tokens_total - before) / took_s,
        "step_ms": took_s / count * 1000,
        "loss": trainer.progress.loss.take(),
        "reserved_mib": torch.cuda.memory_reserved() // MIB if is_on_gpu else None,
        "clock_mhz": clock_mhz() if is_on_gpu else None,
    }


def profiled_steps(trainer: Trainer, count: int) -> dict[str, Any]:
    """Profile steps; return milliseconds per step of collectives, in all and without concurrent kernels."""
    with profile(
        activities=[ProfilerActivity.CUDA if trainer.world.is_on_gpu else ProfilerActivity.CPU]
    ) as seen:
        timed_steps(trainer, count)
    kernels = [each for each in seen.events() if each.device_type == DeviceType.CUDA]
    spans = [(each.time_range.start, each.time_range.end, "nccl" in each.name.lower()) for each in kernels]
    sent = covered([(start, end) for start, end, is_sent in spans if is_sent])
    busy = covered([(start, end) for start, end, _ in spans])
    computing = covered([(start, end) for start, end, is_sent in spans if not is_sent])
    return {"collectives_ms": sent / count / 1000, "exposed_ms": (busy - computing) / count / 1000}


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def wait(trainer: Trainer) -> None:
    if trainer.world.is_on_gpu:
        torch.cuda.synchronize()
    trainer.guard.check()


def clock_mhz() -> int | None:
    with suppress(Exception):  # NVML is optional
        return torch.cuda.clock_rate()
    return None


def full_size(num_rows: int) -> Size:
    return replace(FULL, num_tokens=num_rows * PACKED_LENGTH, text_tokens=TEXT_TOKENS)


def rounds(
    teams: list[Team], count: int, soak: int, steps: int
) -> Iterator[list[dict[str, list[dict[str, Any]]]]]:
    """Run rounds over the teams in alternating direction; yield all rounds so far."""
    seen = []
    for number in range(count):
        order = teams if number % 2 == 0 else teams[::-1]
        seen.append({team.name: team.go(soak, steps) for team in order})
        rates = {name: round(total_rate(name, answers)) for name, answers in seen[-1].items()}
        print(f"round {number}:", rates, flush=True)
        yield seen


def total_rate(name: str, answers: list[dict[str, Any]]) -> float:
    """Return the total tokens/s: ranks of a team report the team's, separate GPUs their own."""
    rates = [each["tokens_per_s"] for each in answers]
    return sum(rates) if name == "apart" else min(rates)


def ratios(seen: list[dict[str, list[dict[str, Any]]]], name: str, num_devices: int) -> list[float]:
    """Return, for each round, a team's tokens/s over those of the first GPU alone times the team's size."""
    return [
        total_rate(name, each[name]) / (num_devices * total_rate("alone", each["alone"])) for each in seen
    ]


def report(
    output: Path, seen: list[Any], members: dict[str, int], settings: dict[str, Any], *, is_complete: bool
) -> None:
    """Write one figure for each number of devices."""
    scaling = {name: statistics.median(ratios(seen, name, size)) for name, size in members.items()}
    rates = {
        name: statistics.median(total_rate(name, each[name]) for each in seen) for name in ["alone", *members]
    }
    for count in sorted({size for name, size in members.items() if name != "apart"}):
        names = [name for name, size in members.items() if size == count and name != "apart"]
        best = max(names, key=scaling.__getitem__)
        detail = {**settings, "mode": best, "scaling": scaling, "tokens_per_s": rates, "rounds": seen}
        path = output / f"{figure(count, settings['rows'], settings['microbatches'])}.json"
        unit = "share of linear in tokens/s"
        write_measurement(path, round(scaling[best], 4), unit, TARGET, detail, is_complete=is_complete)
        print(path.name, best, scaling, rates, flush=True)


def figure(num_devices: int, num_rows: int, num_microbatches: int) -> str:
    rows = f"-{num_rows}rows" if num_rows != ROWS_OF_H200_PROD else ""
    microbatches = f"-{num_microbatches}microbatches" if num_microbatches > 1 else ""
    return f"scaling-{num_devices}gpu{rows}{microbatches}"


def line_up(chosen: Chosen) -> Iterator[tuple[str, list[int], str]]:
    """Yield name, devices and mode: each GPU alone, then the teams of several."""
    for device in range(max(chosen.counts)):
        yield f"card{device}", [device], "replicated"
    for count in chosen.counts:
        for mode in chosen.modes:
            yield f"{mode}-{count}", list(range(count)), mode


def measure(chosen: Chosen, work: Path) -> None:
    size = TINY if chosen.tiny else full_size(chosen.rows)
    write_text(work, size)
    prepare(run_config(work, work / "unused", size, steps=ENOUGH_STEPS, **kernels_of(chosen)))
    most = max(chosen.counts)
    members = {"apart": most} | {f"{mode}-{count}": count for count in chosen.counts for mode in chosen.modes}
    started = []
    try:
        for name, devices, mode in line_up(chosen):
            started.append(start(work, name, devices, mode, size, chosen))
        for team in started:
            team.wait_for_start()
        singles, several = started[:most], started[most:]
        apart = Team("apart", tuple(team.ranks[0] for team in singles))
        teams = [Team("alone", singles[0].ranks), *several, apart]
        settings: dict[str, Any] = {
            "soak": chosen.soak,
            "steps": chosen.steps,
            "rows": chosen.rows,
            "microbatches": chosen.microbatches,
            "kernels": chosen.kernels,
        }
        output, seen = chosen.output or work, list[Any]()
        for seen in rounds(teams, chosen.rounds, chosen.soak, chosen.steps):
            report(output, seen, members, settings, is_complete=False)
        settings["profiles"] = {team.name: team.go(5, 3, "profile") for team in several}
        report(output, seen, members, settings, is_complete=True)
    finally:
        for team in started:
            for rank in team.ranks:
                rank.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--counts", nargs="+", type=int, default=[max(2, torch.cuda.device_count())])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--kernels", choices=("fused", "triton", "torch"), default="fused")
    parser.add_argument("--rows", type=int, default=ROWS_OF_H200_PROD, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=1, help="of each device between two exchanges")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--soak", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child)
    else:
        measure(chosen, chosen.work.resolve())


if __name__ == "__main__":
    main()
