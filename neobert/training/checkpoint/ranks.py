"""Communication between the checkpoint writers of all ranks, on a process group of their own."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from neobert.parallel import World


class WritersGroup:
    """A gloo group of its own: it is used from the writer's thread while training uses the others.

    All ranks build it, and nothing else may happen on it than what the writers do in the same order.
    """

    def __init__(self, world: World) -> None:
        self.is_main = world.is_main
        self.group = dist.new_group(backend="gloo") if world.size > 1 else None

    def tell(self, message: Any) -> None:
        """Send something picklable from rank 0 to the others, which are in `hear`."""
        if self.group is not None:
            dist.broadcast_object_list([message], src=0, group=self.group)

    def hear(self) -> Any:
        """Wait for what rank 0 tells."""
        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0, group=self.group)
        return received[0]
