"""Distributed training: ranks, collectives, DDP and FSDP2. Only this package uses accelerate and FSDP2."""

from neobert.parallel.sharding import full_tensor, gradients_of, own_part, part_like, take_rows
from neobert.parallel.world import World, use_all_cores

__all__ = ["World", "full_tensor", "gradients_of", "own_part", "part_like", "take_rows", "use_all_cores"]
