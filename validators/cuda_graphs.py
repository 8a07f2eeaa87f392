"""Reasons why a step is not recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.config import RunConfig
from neobert.plan.size import num_processes
from neobert.precision.libraries import enabled_conversion


def cuda_graph_obstacles(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield each reason why trainer.cuda_graphs has no effect, with the edit that removes it."""
    trainer, ranks = config.trainer, num_processes(config)
    if trainer.torch_compile and trainer.torch_compile_backend != "inductor":
        reason = f"torch.compile's backend {trainer.torch_compile_backend} does not record CUDA graphs"
        yield reason, "set trainer.torch_compile_backend to inductor"
    if not config.datacollator.pack_sequences:
        yield "padded rows have varying shapes", "set datacollator.pack_sequences to true"
    if conversion := enabled_conversion(config):
        yield "blocks with a low-precision recipe are compiled one by one", conversion.disable_hint
    if ranks > 1:
        yield f"a step of {ranks} ranks cannot be recorded as one graph", "run on one GPU"
