"""Range of nodes of an elastic job, as `--nodes MIN:MAX`."""

from __future__ import annotations

import re
from typing import NamedTuple

from neobert.errors import EXIT_USAGE, ProjectError
from profiles.kept_step import KEEPS, accumulation_for
from profiles.registry import ResolvedRun

TEXT = re.compile(r"([1-9]\d{0,5})(?::([1-9]\d{0,5}))?")


class NodeRange(NamedTuple):
    """Least and largest number of nodes of a job."""

    least: int
    most: int

    @property
    def is_elastic(self) -> bool:
        """Return whether the job may get different numbers of nodes."""
        return self.least < self.most

    def usable(self, run: ResolvedRun) -> tuple[int, ...]:
        """Return the numbers of nodes that divide the step of a run with the least number.

        Raises ProjectError if the largest number does not, or if the run does not keep its step.
        """
        if not self.is_elastic:
            return ()
        if not run.config.trainer.keep_step:
            message = f"on other numbers of nodes a step would have other rows, because {KEEPS} is false"
            raise ProjectError(
                "usage",
                message,
                f"add --{KEEPS} true, or pass a single number of nodes",
                "--nodes",
                EXIT_USAGE,
            )
        trainer, nproc = run.config.trainer, run.config.distributed.nproc_per_node
        step = trainer.gradient_accumulation_steps * nproc * self.least
        accumulation_for(step, nproc, self.most)
        return tuple(n for n in range(self.least, self.most + 1) if step % (n * nproc) == 0)


def parse_nodes(text: str) -> NodeRange:
    """Parse N or MIN:MAX. Raises ProjectError for any other text."""
    match = TEXT.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < least <= most:
        message = f"{text!r} is neither a number of nodes nor a range"
        raise ProjectError("usage", message, "pass --nodes 2 or --nodes 2:4", "--nodes", EXIT_USAGE)
    return NodeRange(least, most)
