"""Peak memory and time of decoder and cross-entropy on a GPU, with all logits at once and in chunks.

    python benchmarks/chunked_loss.py --output docs/measurements

The defaults are a microbatch of a model with a vocabulary of 151,936 tokens.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from measurement import write_measurement

from neobert.kernels.vocabulary import linear_cross_entropy
from neobert.objectives.masked_lm import summed_loss
from neobert.plan.memory import rows_per_chunk

REPEATS = 5
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def at_once(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, torch.bfloat16):
        return summed_loss(F.linear(hidden, weight, bias), labels)


def in_chunks(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    rows = rows_per_chunk(len(hidden), len(weight))
    return linear_cross_entropy(hidden, weight, bias, labels, rows, "torch")


def measure(loss: Loss, inputs: tuple[Tensor, ...], labels: Tensor) -> dict[str, Any]:
    """Run forward and backward a few times; return loss, peak memory beyond the inputs, and the best time."""
    seconds = []
    try:
        for _ in range(REPEATS):
            for each in inputs:
                each.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, started = torch.cuda.memory_allocated(), time.perf_counter()
            value = loss(*inputs, labels)
            value.backward()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    except torch.cuda.OutOfMemoryError as error:
        return {"error": str(error).splitlines()[0]}
    peak = (torch.cuda.max_memory_allocated() - before) // 2**20
    return {"loss": value.item(), "peak_mib": peak, "best_ms": round(1000 * min(seconds), 2)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the JSON file")
    parser.add_argument("--targets", type=int, default=32_768)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=151_936)
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("needs a CUDA device", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    hidden = torch.randn(asked.targets, asked.hidden, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(asked.vocab, asked.hidden, device="cuda").mul_(asked.hidden**-0.5).requires_grad_()
    bias = torch.zeros(asked.vocab, device="cuda").requires_grad_()
    labels = torch.randint(asked.vocab, (asked.targets,), device="cuda")
    detail: dict[str, Any] = {"targets": asked.targets, "hidden": asked.hidden, "vocab": asked.vocab}
    detail["rows_per_chunk"] = rows_per_chunk(asked.targets, asked.vocab)
    for name, loss in {"chunks": in_chunks, "at_once": at_once}.items():
        detail[name] = measure(loss, (hidden, weight, bias), labels)
        torch.cuda.empty_cache()
    value = detail["chunks"].get("peak_mib")
    print(write_measurement(asked.output / "chunked-loss.json", value, "MiB peak", None, detail))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
