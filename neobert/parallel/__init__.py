"""Distributed training: ranks, collectives, DDP and FSDP2. Only this package uses accelerate and FSDP2."""

from neobert.parallel.sharding import copy_own_rows, full_tensor, list_gradients, local_shard, shard_like
from neobert.parallel.world import World, use_all_cores

__all__ = [
    "World",
    "copy_own_rows",
    "full_tensor",
    "list_gradients",
    "local_shard",
    "shard_like",
    "use_all_cores",
]
