"""Attendance of ranks: each rank signs in a store, and those that have not in time are named as absent."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistStoreError, Store

DRILL_PATIENCE_S, DRILL_LIMIT_S = 2.0, 30.0


@dataclass(frozen=True, slots=True)
class Muster:
    """This rank among those that are expected, and where they sign."""

    store: Store
    rank: int
    world_size: int

    def call(self, name: str, patience_s: float) -> tuple[int, ...]:
        """Sign under a name and return the ranks that have not signed after `patience_s`."""
        self.store.set(f"{name}/{self.rank}", "here")
        return self.absent(name, patience_s)

    def absent(self, name: str, patience_s: float) -> tuple[int, ...]:
        """Return the ranks that have not signed after `patience_s`, together, not each."""
        deadline = time.monotonic() + patience_s
        return tuple(rank for rank in range(self.world_size) if not self._signs(name, rank, deadline))

    def _signs(self, name: str, rank: int, deadline: float) -> bool:
        left_s = max(0.05, deadline - time.monotonic())
        try:
            self.store.wait([f"{name}/{rank}"], timedelta(seconds=left_s))
        except DistStoreError:
            return False
        return True

    def drill(self) -> tuple[tuple[int, ...], float]:
        """Let the last rank stay away and see whom this one misses; return that and the seconds it took.

        The rank that stays away misses nobody: it waits until the others are done.
        """
        last = self.world_size - 1
        if self.rank == last:
            self.store.wait([f"drilled/{rank}" for rank in range(last)], timedelta(seconds=DRILL_LIMIT_S))
            return (), 0.0
        started = time.monotonic()
        missed = self.call("drill", DRILL_PATIENCE_S)
        self.store.set(f"drilled/{self.rank}", "done")
        return missed, time.monotonic() - started
