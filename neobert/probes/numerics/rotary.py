"""Rotary probe: the cosines and sines that a path computes, compared with fp64.

Rotary attention depends on relative positions: an offset shared by a whole document changes only the last
bits of the output, so comparing outputs cannot detect it. Therefore the rotary tables are compared directly.

Shapes: T tokens, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from neobert.model import encoder
from neobert.objectives import packed_encoder
from neobert.probes.numerics.faulty_attention import Target, patch_functions
from neobert.probes.numerics.leak_batch import LeakBatch
from neobert.probes.numerics.paths import Path, largest_magnitude

Table = tuple[Tensor, Tensor]
"""Positions [T], and their interleaved (cosine, sine) pairs [T, E]."""

MAKERS: tuple[Target, Target] = ((encoder, "compute_rotation"), (packed_encoder, "rotary_table"))
"""Functions that compute rotary tables: of the model's eager code, and of the replaced blocks."""


def measure_rotation(path: Path, batch: LeakBatch) -> dict[str, Any] | None:
    """Count tokens with a wrong position, and return the largest error of their cosines and sines.

    Returns None if the path computes no rotary table.
    """
    with record_rotations() as tables:
        path.hidden(batch)
    if not tables:
        return None
    size, theta = path.model.config.dim_head, path.model.config.rope_theta
    tokens = batch.positions_outside(None)
    truth = torch.cat([torch.arange(n, device=tokens.device) for n in batch.lengths])
    angles = truth.double()[:, None] * theta ** -(
        torch.arange(0, size, 2, device=truth.device).double() / size
    )
    wanted = torch.stack((angles.cos(), angles.sin()), -1).flatten(1)
    return {
        "max_position": int(truth.max()),
        "misplaced": max(int((positions[tokens] != truth).sum()) for positions, _ in tables),
        "largest_error": max(largest_magnitude(table[tokens].double() - wanted) for _, table in tables),
    }


@contextmanager
def record_rotations() -> Iterator[list[Table]]:
    """Record the positions [T] and rotary tables [T, E] computed inside the `with` block."""
    tables: list[Table] = []
    with patch_functions(MAKERS, lambda make, _: _record_tables(make, tables)):
        yield tables


def _record_tables(make: Callable[..., Tensor], tables: list[Table]) -> Callable[..., Tensor]:
    def record(positions: Tensor, head_dim: int, *rest: Any) -> Tensor:
        rotation = make(positions, head_dim, *rest)
        # A kernel's table has the pairs of queries first, then those of keys and values.
        flat = rotation.reshape(positions.numel(), -1)[:, :head_dim]
        tables.append((positions.flatten(), flat))
        return rotation

    return record


def rotary_table_function(path: Path) -> Target:
    """Return the function that computes this path's rotary table, as (module, name)."""
    return MAKERS[1] if path.kernels.replaces_blocks else MAKERS[0]
