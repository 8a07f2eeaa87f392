"""Opening of the GPU in an idle trainer, which trains afterwards: the first use of its parts takes time.

`main` opens a context and computes a small matrix product. For a run whose step is compiled or recorded it
traces the product too, for which torch imports modules. Nothing is kept but what the process has loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

TRACES = "traces"
SIZE = 64


def main(arguments: Sequence[str]) -> None:
    """Open the GPU of this process, or use its CPU where it has none; `traces` as argument: trace too."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = nn.Linear(SIZE, SIZE, device=device, dtype=torch.bfloat16)

    def summed(rows: Tensor) -> Tensor:
        products: Tensor = layer(rows)
        return products.sum()

    work = torch.compile(summed, backend="aot_eager", fullgraph=True) if TRACES in arguments else summed
    work(torch.ones(SIZE, SIZE, device=device, dtype=torch.bfloat16)).backward()
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
