"""The processes of a run and what they share. Nothing else in the project touches accelerate."""

from neobert.parallel.world import World, use_all_cores

__all__ = ["World", "use_all_cores"]
