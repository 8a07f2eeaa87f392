"""Time of whole training steps of NeoBERT-250M on one GPU, one process per variant of kernels.

    python benchmarks/step_throughput.py       # every variant, documents packed to 1024 and full rows of 4096
    python benchmarks/step_throughput.py --only fused-compiled-graph --lengths packed --profile
    python benchmarks/step_throughput.py --output DIR        # JSON beside the table

A step is forward, backward and fused AdamW on float32 masters over T tokens (32,768), bfloat16 products.
"packed" draws documents from a lognormal (median 150, sigma 0.86, mean about 217 tokens, at most 1,024);
"4096" and "1024" are full rows. MFU counts 6 * N_linear * T + 6 * V * D * 0.2 * T + 12 * L * D * sum(length
** 2) over true segments. Its scale is the bfloat16 rate of an 8192 ** 3 product: the median of bursts between
the rounds of steps, so that the same power limit applies to both; the rate of the cold GPU, before the first
step, is recorded too.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise, product

import torch
from measurement import write_measurement
from packed_encoder import VARIANTS, Batch, Encoder, Variant, draw_batch, flops
from torch import Tensor

FIGURES = {"packed": ("pretrain-1024-mfu", 0.62), "4096": ("pretrain-4096-mfu", 0.64)}


class Step:
    """One training step.

    The fused variant reads float32 weights; the others read bfloat16 copies of float32 masters.
    """

    def __init__(self, variant: Variant, max_seqlen: int) -> None:
        self.is_direct = variant.elementwise == "fused"
        self.model = Encoder(variant, max_seqlen, torch.float32 if self.is_direct else torch.bfloat16)
        self.parameters = list(self.model.parameters())
        self.masters = self.parameters if self.is_direct else [p.detach().float() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, fused=True, capturable=variant.is_graph)
        self.forward = torch.compile(self.model, fullgraph=True) if variant.is_compiled else self.model

    def __call__(self, *batch: Tensor) -> Tensor:
        loss = self.forward(*batch)
        loss.backward()
        if not self.is_direct:
            for master in self.masters:
                if master.grad is None:
                    master.grad = torch.empty_like(master)
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
        self.optimizer.step()
        if not self.is_direct:
            torch._foreach_copy_([p.data for p in self.parameters], self.masters)
        for parameter in self.parameters:
            parameter.grad = None
        return loss.detach()


def capture(step: Step, batch: Batch) -> Callable[..., Tensor]:
    """Capture a whole step as one CUDA graph; a replay copies its batch into the captured batch."""
    static = [t.clone() for t in batch.tensors()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(*static)

    def replay(*tensors: Tensor) -> Tensor:
        torch._foreach_copy_(static, list(tensors))
        graph.replay()
        return loss

    return replay


class Gemm:
    """The product that defines the peak: 8192 ** 3 in bfloat16."""

    def __init__(self) -> None:
        self.a, self.b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def __call__(self) -> Tensor:
        return self.a @ self.b

    def tflops(self, repeats: int) -> float:
        return 2 * 8192**3 / statistics.median(times_ms(self, repeats)) / 1e9


def times_ms(function: Callable[[], object], repeats: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        function()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def card_state() -> str:
    query = "power.draw,clocks.sm,temperature.gpu,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def measure(name: str, kind: str, tokens: int, rounds: int, profile: bool) -> dict[str, object]:
    torch.manual_seed(0)
    variant, gemm = VARIANTS[name], Gemm()
    batches = [draw_batch(kind, tokens, seed) for seed in range(4)]
    gemm.tflops(5)
    cold_tflops = gemm.tflops(20)
    if variant.attention == "flash3":
        torch.nn.attention.activate_flash_attention_impl("FA3")
    start = time.perf_counter()
    step = Step(variant, batches[0].max_seqlen)
    run: Callable[..., Tensor] = capture(step, batches[0]) if variant.is_graph else step
    losses = [run(*batches[index % 4].tensors()).clone() for index in range(6)]
    torch.cuda.synchronize()
    warm_s = time.perf_counter() - start
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    gc.collect()
    gc.freeze()
    torch.cuda.reset_peak_memory_stats()
    state = {"index": 0}

    def one() -> None:
        run(*batches[state["index"] % 4].tensors())
        state["index"] += 1

    series, rates = [], []
    for _ in range(rounds):
        series += times_ms(one, 8)
        rates.append(gemm.tflops(10))
    for _ in range(12):
        one()
    card = card_state()
    torch.cuda.synchronize()
    step_ms, warm_tflops = statistics.median(series), statistics.median(rates)
    work = flops(tokens, statistics.mean(batch.sum_squares for batch in batches))
    rate = work / step_ms / 1e9
    if profile:
        report(one)
    return {
        "variant": name,
        "lengths": kind,
        "tokens": tokens,
        "step_ms": round(step_ms, 2),
        "tokens_per_second": round(tokens / step_ms * 1e3),
        "mfu_of_measured_peak": round(rate / warm_tflops, 4),
        "mfu_of_cold_peak": round(rate / cold_tflops, 4),
        "mfu_of_989": round(rate / 989, 4),
        "peak_tflops": round(warm_tflops, 1),
        "cold_peak_tflops": round(cold_tflops, 1),
        "peak_tflops_by_round": [round(r, 1) for r in rates],
        "first_round_ms": round(statistics.median(series[:8]), 2),
        "last_round_ms": round(statistics.median(series[-8:]), 2),
        "tflop_per_step": round(work / 1e12, 2),
        "losses": [round(loss.item(), 4) for loss in losses],
        "warm_up_s": round(warm_s, 1),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "card": card,
        **compilations(graphs),
    }


def compilations(graphs: int) -> dict[str, int]:
    counters = torch._dynamo.utils.counters
    return {
        "graphs_compiled": graphs,
        "graphs_compiled_after_warm_up": counters["stats"]["unique_graphs"] - graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
    }


def report(one: Callable[[], None]) -> None:
    """Print kernel time by name over four steps, in milliseconds per step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(4):
            one()
        torch.cuda.synchronize()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    print(f"kernel total {sum(r.self_device_time_total for r in rows) / 4e3:.2f} ms")
    for row in rows[:40]:
        print(f"{row.self_device_time_total / 4e3:8.3f} ms {row.count // 4:5d} x  {row.key[:110]}")


def run_apart(name: str, kind: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Measure in a child process: one variant's failure or leftover state must not touch the next."""
    command = [
        sys.executable,
        __file__,
        "--child",
        "--only",
        name,
        "--lengths",
        kind,
        "--tokens",
        str(arguments.tokens),
        "--rounds",
        str(arguments.rounds),
    ]
    command += ["--profile"] if arguments.profile else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"variant": name, "lengths": kind, "error": f"no result in {arguments.timeout_s} s"}
    if done.returncode:
        return {"variant": name, "lengths": kind, "error": done.stderr[-3000:]}
    *printed, last = done.stdout.strip().splitlines()
    return {**json.loads(last), **({"profile": printed} if printed else {})}


def write_figures(
    folder: pathlib.Path, results: list[dict[str, object]], *, is_complete: bool = True
) -> None:
    """Write the MFU of the fastest variant for each kind of rows, with all variants in the details."""
    for kind, (name, target) in FIGURES.items():
        rows = [row for row in results if row["lengths"] == kind]
        ran = [row for row in rows if "error" not in row]
        best = max(ran, key=lambda row: row["tokens_per_second"], default=None)
        if rows:
            path, value = folder / f"{name}.json", best and best["mfu_of_measured_peak"]
            unit = "share of the bf16 rate measured between the steps"
            detail = {"best": best, "variants": rows}
            write_measurement(path, value, unit, target, detail, is_complete=is_complete)


def table(results: list[dict[str, object]]) -> str:
    widths = {
        "variant": -28,
        "lengths": 8,
        "ms": 9,
        "tokens/s": 10,
        "MFU": 8,
        "of cold": 9,
        "of 989": 8,
        "GiB": 7,
    }
    lines = ["".join(f"{name:{'<' if w < 0 else '>'}{abs(w)}}" for name, w in widths.items())]
    for r in results:
        head = f"{r['variant']:28}{r['lengths']:>8}"
        if "error" in r:
            lines.append(f"{head}  {str(r['error']).strip().splitlines()[-1][:150]}")
            continue
        lines.append(
            f"{head}{r['step_ms']:>9}{r['tokens_per_second']:>10}{r['mfu_of_measured_peak']:>8}{r['mfu_of_cold_peak']:>9}"
            f"{r['mfu_of_989']:>8}{r['memory_gib']:>7}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--lengths", nargs="+", default=["packed", "4096"])
    parser.add_argument("--tokens", type=int, default=32_768, help="a step; a multiple of 4,096")
    parser.add_argument("--rounds", type=int, default=5, help="of eight steps each")
    parser.add_argument("--timeout-s", type=float, default=240)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, tokens = arguments.lengths[0], arguments.tokens
        print(json.dumps(measure(arguments.only[0], kind, tokens, arguments.rounds, arguments.profile)))
        return
    results: list[dict[str, object]] = []
    variants = list(product(arguments.lengths, arguments.only))
    for kind, name in variants:
        results.append(run_apart(name, kind, arguments))
        if arguments.output:
            write_figures(arguments.output, results, is_complete=len(results) == len(variants))
    print(table(results))


if __name__ == "__main__":
    main()
