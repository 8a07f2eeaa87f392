"""Time whole training steps of NeoBERT-250M on one GPU, one variant of kernels a process, in one run.

    python benchmarks/step_throughput.py                     # every variant, packed rows of 1024 and full rows of 4096
    python benchmarks/step_throughput.py --only fused-graph --lengths packed
    python benchmarks/step_throughput.py --output DIR        # JSON beside the table

A step is forward, backward and fused AdamW on float32 masters over T = 32,768 tokens, bfloat16 products. "packed" draws
documents from a lognormal (median 150, sigma 0.86, mean about 217 tokens, at most 1,024); "4096" and "1024" are full rows.
MFU counts 6 * N_linear * T + 6 * V * D * 0.2 * T + 12 * L * D * sum(length ** 2) over true segments. Its scale is the
bfloat16 rate of an 8192 ** 3 product: the median of bursts between the rounds of steps, so that both are held to the same power
limit; the rate of the still cold card, before the first step, stands beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, VOCAB, HIDDEN, HEADS, INNER, LAYERS = 32_768, 30_528, 768, 12, 2048, 28
THETA, EPS, SLOTS = 10_000.0, 1e-5, 256
MASKED = int(0.2 * TOKENS)
MASKED_CAPACITY = -(-MASKED // 128) * 128
SHAPES = {
    "attention_norm": (HIDDEN,),
    "qkv": (3 * HIDDEN, HIDDEN),
    "wo": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "w12": (2 * INNER, HIDDEN),
    "w3": (HIDDEN, INNER),
}
LINEAR = LAYERS * sum(math.prod(shape) for shape in SHAPES.values() if len(shape) == 2)


@dataclass(frozen=True)
class Variant:
    """What runs the step: attention in {varlen, flash3, flash4, packed}, the elementwise work in {torch, triton, fused}."""

    attention: str
    elementwise: str
    is_compiled: bool = True
    is_graph: bool = False


VARIANTS = {
    "varlen": Variant("varlen", "torch"),
    "flash3": Variant("flash3", "torch"),
    "flash4": Variant("flash4", "torch"),
    "packed": Variant("packed", "torch"),
    "packed-triton": Variant("packed", "triton"),
    "packed-triton-graph": Variant("packed", "triton", is_graph=True),
    "flash4-triton": Variant("flash4", "triton"),
    "fused": Variant("packed", "fused", is_compiled=False),
    "fused-compiled": Variant("packed", "fused"),
    "fused-compiled-graph": Variant("packed", "fused", is_graph=True),
    "fused-flash4": Variant("flash4", "fused", is_compiled=False),
    "fused-flash4-compiled": Variant("flash4", "fused"),
    "fused-flash4-compiled-graph": Variant("flash4", "fused", is_graph=True),
}


@dataclass(frozen=True)
class Batch:
    """T tokens, K slots of segments, M masked rows (label -100 beyond the true count)."""

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    masked_rows: Tensor
    labels: Tensor
    max_seqlen: int
    sum_squares: int

    def tensors(self) -> list[Tensor]:
        return [self.input_ids, self.position_ids, self.cu_seqlens, self.masked_rows, self.labels]


def draw_lengths(kind: str, rng: random.Random) -> list[int]:
    if kind != "packed":
        return [int(kind)] * (TOKENS // int(kind))
    lengths: list[int] = []
    while (left := TOKENS - sum(lengths)) > 0:
        lengths.append(min(left, 1024, max(8, round(math.exp(rng.gauss(math.log(150), 0.86))))))
    return lengths


def draw_batch(kind: str, seed: int) -> Batch:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = draw_lengths(kind, rng)
    slots = SLOTS if kind == "packed" else len(lengths)
    assert len(lengths) <= slots
    cu = torch.tensor([0, *lengths]).cumsum(0)
    cu = torch.cat([cu, cu.new_full((slots - len(lengths),), TOKENS)]).to(torch.int32)
    ids = torch.randint(5, 30_000, (TOKENS,), generator=generator)
    rows = torch.randperm(TOKENS, generator=generator)[:MASKED].sort().values
    rows = torch.cat([rows, rows.new_zeros(MASKED_CAPACITY - MASKED)])
    labels = torch.cat([ids[rows[:MASKED]], torch.full((MASKED_CAPACITY - MASKED,), -100)])
    positions = torch.cat([torch.arange(n) for n in lengths])
    longest = 1024 if kind == "packed" else int(kind)
    tensors = (t.cuda() for t in (ids, positions, cu, rows, labels))
    return Batch(*tensors, longest, sum(n * n for n in lengths))


class Encoder(nn.Module):
    """NeoBERT with the published names of a block's tensors, its kernels chosen by the variant."""

    def __init__(self, variant: Variant, max_seqlen: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.variant, self.max_seqlen = variant, max_seqlen
        self.embedding = self._matrix(VOCAB, HIDDEN, dtype=dtype)
        self.decoder = self._matrix(VOCAB, HIDDEN, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(VOCAB, device="cuda", dtype=dtype))
        self.layer_norm = nn.Parameter(torch.ones(HIDDEN, device="cuda", dtype=dtype))
        self.blocks = nn.ModuleList(nn.ParameterDict(self._block(dtype)) for _ in range(LAYERS))

    @staticmethod
    def _matrix(*shape: int, dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, device="cuda").uniform_(-0.02, 0.02).to(dtype))

    def _block(self, dtype: torch.dtype) -> dict[str, nn.Parameter]:
        ones = torch.ones(HIDDEN, device="cuda", dtype=dtype)
        return {
            name: self._matrix(*shape, dtype=dtype) if len(shape) == 2 else nn.Parameter(ones.clone())
            for name, shape in SHAPES.items()
        }

    def forward(self, ids: Tensor, positions: Tensor, cu: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        run = {"fused": self._fused, "triton": self._triton, "torch": self._torch}[self.variant.elementwise]
        from neobert.kernels.tiles import rotary_table

        x = F.embedding(ids, self.embedding).to(torch.bfloat16)
        hidden = run(x, rotary_table(positions, HIDDEN // HEADS, THETA, self._table_dtype()), cu)
        return self._loss(hidden.index_select(0, rows), labels) / MASKED

    def _table_dtype(self) -> torch.dtype:
        return torch.float16 if self.variant.elementwise == "fused" else torch.float32

    def _segments(self, cu: Tensor) -> Tensor:
        from neobert.kernels.attention import BLOCK
        from neobert.kernels.tiles import attention_tiles

        return attention_tiles(cu, TOKENS, BLOCK) if self.variant.attention == "packed" else cu

    def _fused(self, x: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        from neobert.kernels.fused_block import Weights, encoder_block, row_rstd

        segments, longest = self._segments(cu), 0 if self.variant.attention == "packed" else self.max_seqlen
        rstd = row_rstd(x.detach(), EPS)
        for block in self.blocks:
            weights = Weights(*(block[name] for name in Weights._fields))
            x, rstd = encoder_block(x, rstd, weights, rotary, segments, num_heads=HEADS, eps=EPS, max_seqlen=longest)
        return x

    def _triton(self, x: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        from neobert.kernels.norm import add_rms_norm, rms_norm
        from neobert.kernels.swiglu import swiglu_down

        segments, blocks = self._segments(cu), list(self.blocks)
        normed = rms_norm(x, blocks[0]["attention_norm"], EPS)
        for index, block in enumerate(blocks):
            attended = self._attend(normed @ block["qkv"].t(), rotary, segments)
            x, normed = add_rms_norm(x, attended @ block["wo"].t(), block["ffn_norm"], EPS)
            branch = swiglu_down(normed @ block["w12"].t(), block["w3"])
            if index + 1 < len(blocks):
                x, normed = add_rms_norm(x, branch, blocks[index + 1]["attention_norm"], EPS)
        return x + branch

    def _torch(self, x: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        segments = self._segments(cu)
        for block in self.blocks:
            normed = F.rms_norm(x, (HIDDEN,), block["attention_norm"], EPS)
            x = x + self._attend(normed @ block["qkv"].t(), rotary, segments) @ block["wo"].t()
            gate, up = (F.rms_norm(x, (HIDDEN,), block["ffn_norm"], EPS) @ block["w12"].t()).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ block["w3"].t()
        return x

    def _attend(self, qkv: Tensor, rotary: Tensor, segments: Tensor) -> Tensor:
        if self.variant.attention == "packed":
            from neobert.kernels.attention import rotary_attention

            return rotary_attention(qkv, rotary, segments, HEADS)
        if self.variant.attention == "flash4":
            from neobert.kernels.flash4 import rotary_attention

            return rotary_attention(qkv, rotary, segments, self.max_seqlen, HEADS)
        return self._attend_varlen(qkv, rotary, segments)

    def _attend_varlen(self, qkv: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = qkv.unflatten(-1, (HEADS, 3, -1)).unbind(-2)
        cos, sin = rotary[:, None, : HIDDEN // HEADS].unflatten(-1, (-1, 2)).unbind(-1)
        q, k = (_rotate(t, cos, sin) for t in (q, k))
        return varlen_attn(q, k, v, cu, cu, self.max_seqlen, self.max_seqlen).flatten(1)

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        if self.variant.elementwise == "torch":
            hidden = F.rms_norm(hidden, (HIDDEN,), self.layer_norm, EPS)
            logits = hidden @ self.decoder.t() + self.bias
            return F.cross_entropy(logits.float(), labels, reduction="sum")
        from neobert.kernels.loss import linear_cross_entropy
        from neobert.kernels.norm import rms_norm

        return linear_cross_entropy(rms_norm(hidden, self.layer_norm, EPS), self.decoder, self.bias, labels)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Step:
    """One training step. The fused variant reads float32 weights; the others read bfloat16 copies of float32 masters."""

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
    """Record a whole step as one CUDA graph; the replay copies its batch into the recorded one's place."""
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
    """The product that sets the scale: 8192 ** 3 in bfloat16."""

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
    return [a.elapsed_time(b) for a, b in zip(marks[:-1], marks[1:], strict=True)]


def card_state() -> str:
    query = "power.draw,clocks.sm,temperature.gpu,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def flops(sum_squares: float) -> float:
    return 6 * LINEAR * TOKENS + 6 * VOCAB * HIDDEN * MASKED + 12 * LAYERS * HIDDEN * sum_squares


def measure(name: str, kind: str, rounds: int, profile: bool) -> dict[str, object]:
    torch.manual_seed(0)
    variant, batches, gemm = VARIANTS[name], [draw_batch(kind, seed) for seed in range(4)], Gemm()
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
    work = flops(statistics.mean(batch.sum_squares for batch in batches))
    rate = work / step_ms / 1e9
    if profile:
        report(one)
    return {
        "variant": name, "lengths": kind, "step_ms": round(step_ms, 2), "tokens_per_second": round(TOKENS / step_ms * 1e3),
        "mfu_of_measured_peak": round(rate / warm_tflops, 4), "mfu_of_cold_peak": round(rate / cold_tflops, 4),
        "mfu_of_989": round(rate / 989, 4), "peak_tflops": round(warm_tflops, 1), "cold_peak_tflops": round(cold_tflops, 1),
        "first_round_ms": round(statistics.median(series[:8]), 2), "last_round_ms": round(statistics.median(series[-8:]), 2),
        "peak_tflops_by_round": [round(r, 1) for r in rates], "tflop_per_step": round(work / 1e12, 2),
        "losses": [round(loss.item(), 4) for loss in losses], "warm_up_s": round(warm_s, 1),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1), "card": card,
        "graphs_compiled": graphs,
        "graphs_compiled_after_warm_up": torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs,
        "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }  # fmt: skip


def report(one: Callable[[], None]) -> None:
    """Print kernel time by name over four steps, in milliseconds a step."""
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
    command = [sys.executable, __file__, "--child", "--only", name, "--lengths", kind, "--rounds", str(arguments.rounds)]
    command += ["--profile"] if arguments.profile else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"variant": name, "lengths": kind, "error": f"no result in {arguments.timeout_s} s"}
    if done.returncode:
        return {"variant": name, "lengths": kind, "error": done.stderr[-3000:]}
    *printed, last = done.stdout.strip().splitlines()
    return {**json.loads(last), **({"profile": printed} if printed else {})}


def table(results: list[dict[str, object]]) -> str:
    lines = [f"{'variant':28}{'lengths':>9}{'ms':>9}{'tokens/s':>10}{'MFU':>8}{'of cold':>9}{'of 989':>8}{'GiB':>7}{'warm s':>8}"]
    for r in results:
        head = f"{r['variant']:28}{r['lengths']:>9}"
        if "error" in r:
            lines.append(f"{head}  {str(r['error']).strip().splitlines()[-1][:150]}")
            continue
        lines.append(
            f"{head}{r['step_ms']:>9}{r['tokens_per_second']:>10}{r['mfu_of_measured_peak']:>8}{r['mfu_of_cold_peak']:>9}"
            f"{r['mfu_of_989']:>8}{r['memory_gib']:>7}{r['warm_up_s']:>8}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--lengths", nargs="+", default=["packed", "4096"])
    parser.add_argument("--rounds", type=int, default=5, help="of eight steps each")
    parser.add_argument("--timeout-s", type=float, default=240)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.only[0], arguments.lengths[0], arguments.rounds, arguments.profile)))
        return
    results = [run_apart(name, kind, arguments) for kind in arguments.lengths for name in arguments.only]
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "step_throughput.json").write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
