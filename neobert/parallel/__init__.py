"""The processes of a run and what they share. Nothing else in the project touches accelerate or FSDP2."""

from neobert.parallel.sharding import full_tensor, gradients_of, load_full_state, own_part, part_like
from neobert.parallel.world import World, use_all_cores

__all__ = [
    "World", "full_tensor", "gradients_of", "load_full_state", "own_part", "part_like", "use_all_cores",
]  # fmt: skip
