"""Time of the decoder and its cross-entropy over a large vocabulary, forward and backward, against Liger.

    python benchmarks/vocabulary_loss.py [--tokens 32768 --vocabulary 151936 --hidden 896] [--output DIR]

In turns on one GPU: this project's loss, torch's modules with all logits in memory, and Liger's fused linear
cross-entropy with gradients summed in the type of the weights and in fp32. Hidden states are bf16, weights
fp32; all compute products in bf16 and give a gradient for both. `products` is the least that any of them has
to do: three products without the softmax.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measurement import write_measurement
from peers.turns import free_memory, synchronize
from torch import Tensor

from neobert.kernels.vocabulary import linear_cross_entropy

GIB = 2**30
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
OURS = "ours"


def whole(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(hidden, weight.to(hidden.dtype))
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def own(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_cross_entropy(hidden, weight, None, labels)


def liger(accumulated: torch.dtype | None, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    options = (None, None, -100, 0.0, 0.0, "sum", None, False, accumulated)
    result = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight.to(hidden.dtype), labels, *options)
    loss: Tensor = result[0] if isinstance(result, tuple) else result
    return loss


def products(hidden: Tensor, weight: Tensor, _labels: Tensor) -> Tensor:
    """Compute logits and both gradients of their sum, 8,192 rows at a time."""
    matrix, total = weight.to(hidden.dtype), hidden.new_zeros((), dtype=torch.float32)
    for rows in hidden.split(8192):
        logits = rows @ matrix.t()
        total = total + (logits @ matrix)[0, 0] + (logits.t() @ rows)[0, 0]
    return total


def contenders() -> dict[str, Loss]:
    found: dict[str, Loss] = {OURS: own, "all logits": whole, "products": products}
    if find_spec("liger_kernel") is not None:
        found |= {"liger": partial(liger, None), "liger, fp32": partial(liger, torch.float32)}
    return found


def once(loss: Loss, hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the loss and both gradients."""
    value = loss(hidden, weight, labels)
    if loss is products:
        return (value,)
    return (value.detach(), *torch.autograd.grad(value, (hidden, weight)))


def check(losses: dict[str, Loss], hidden: Tensor, weight: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return errors of loss and gradients against fp32 on some of the rows, or the error of a contender."""
    hidden, labels = hidden[:512].detach().requires_grad_(), labels[:512]
    wide = hidden.float().detach().requires_grad_()
    value = F.cross_entropy(F.linear(wide, weight), labels, reduction="sum")
    truth = (value.detach(), *torch.autograd.grad(value, (wide, weight)))
    found: dict[str, Any] = {}
    for name, loss in losses.items():
        if loss is products:
            continue
        try:
            given = once(loss, hidden, weight, labels)
            parts = zip(("loss", "hidden", "weight"), given, truth, strict=True)
            found[name] = {part: float((a.float() - b).norm() / b.norm()) for part, a, b in parts}
        except Exception as error:  # the others are measured
            found[name] = f"{type(error).__name__}: {error}"[:300]
    return found


def milliseconds(loss: Loss, repeats: int, *tensors: Tensor) -> tuple[float, float]:
    """Return milliseconds of one pass, and its peak of memory in GiB beyond the inputs."""
    free_memory()
    once(loss, *tensors)
    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    if held:
        torch.cuda.reset_peak_memory_stats()
    synchronize()
    started_s = time.perf_counter()
    for _ in range(repeats):
        once(loss, *tensors)
    synchronize()
    peak = (torch.cuda.max_memory_allocated() - held) / GIB if held else 0.0
    return (time.perf_counter() - started_s) / repeats * 1e3, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    hidden = torch.randn(
        chosen.tokens, chosen.hidden, device=device, dtype=torch.bfloat16, requires_grad=True
    )
    weight = (torch.randn(chosen.vocabulary, chosen.hidden, device=device) * 0.02).requires_grad_()
    labels = torch.randint(chosen.vocabulary, (chosen.tokens,), device=device)
    losses = contenders()
    errors = check(losses, hidden, weight, labels)
    ran = {name: loss for name, loss in losses.items() if not isinstance(errors.get(name), str)}
    times: dict[str, list[float]] = {name: [] for name in ran}
    peaks: dict[str, float] = {}
    for _ in range(chosen.rounds):
        for name in list(ran):
            try:
                ms, peaks[name] = milliseconds(ran[name], chosen.repeats, hidden, weight, labels)
                times[name].append(round(ms, 2))
            except torch.OutOfMemoryError:
                errors[name] = "out of memory"
                del ran[name], times[name]
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, ms in medians.items():
        print(f"{name:14}{ms:9.1f} ms {peaks[name]:7.1f} GiB  errors {errors.get(name)}")
    print({name: error for name, error in errors.items() if name not in medians})
    mine = medians[OURS]
    theirs = min((medians[name] for name in ("liger", "liger, fp32") if name in medians), default=None)
    print(f"ours / liger: {mine / theirs:.2f}" if theirs else "liger did not run")
    if chosen.output:
        detail = {"milliseconds": medians, "rounds": times, "peak_memory_gib": peaks, "errors": errors}
        path = chosen.output / "large-vocabulary-loss.json"
        write_measurement(path, mine, "ms, forward and backward", theirs, detail)


if __name__ == "__main__":
    main()
