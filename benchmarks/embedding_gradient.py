"""What a gradient that repeats costs: a compiled lookup and its backward, torch's own and this project's.

`python -m benchmarks.embedding_gradient [TOKENS] [VOCABULARY] [WIDTH]`
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.kernels.embedding import embedding

REPEATS, WARM_UP = 30, 5
PADDING = 0


def measure(look_up: Callable[[Tensor, Tensor], Tensor], ids: Tensor, weight: Tensor) -> dict[str, float]:
    """Return milliseconds of forward and backward, and how far two gradients of the same step are apart."""
    compiled = torch.compile(look_up, fullgraph=True, dynamic=False)
    grad = torch.randn(*ids.shape, weight.shape[1], device=ids.device, dtype=torch.bfloat16)
    times_ms, gradients = [], []
    for _ in range(WARM_UP + REPEATS):
        _wait(ids)
        started_s = time.perf_counter()
        (found,) = torch.autograd.grad(compiled(ids, weight), weight, grad)
        _wait(ids)
        times_ms.append((time.perf_counter() - started_s) * 1000)
        gradients = [*gradients[-1:], found]
    apart = (gradients[1] - gradients[0]).abs().max() / gradients[0].abs().max()
    return {"median_ms": median(times_ms[WARM_UP:]), "gradient_moved": apart.item()}


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def main(arguments: list[str]) -> None:
    """Print both as JSON. Tokens are drawn as words are: a few of them very often."""
    num_tokens, num_rows, width = (*map(int, arguments), *(32_768, 30_592, 768)[len(arguments) :])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, num_rows + 1)
    ids = torch.multinomial(frequency, num_tokens, replacement=True, generator=generator).to(device)
    weight = torch.randn(num_rows, width, device=device).requires_grad_()
    ways = {
        "torch": lambda ids, weight: F.embedding(ids, weight, PADDING).to(torch.bfloat16),
        "own": lambda ids, weight: embedding(ids, weight, PADDING).to(torch.bfloat16),
    }
    print(json.dumps({name: measure(way, ids, weight) for name, way in ways.items()}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
