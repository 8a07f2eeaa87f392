"""Names that a run file may contain for one task: its section of keys and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from neobert.tasks.metric import Metric

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKeys(Generic[T]):
    """Names that a run file may contain for one task. The schema is built from these.

    Attributes:
        name: value of the key `task`, and name of the task's section.
        package: dotted name of the package, with the modules `spec`, `examples`, `task` and `prediction`.
        metrics: metrics that an evaluation may report, and that may select the best checkpoint.
        section: dataclass of the keys that only this task reads; None: it has none.
        about: description of the section.
    """

    name: str
    package: str
    metrics: tuple[Metric, ...]
    section: type[T] | None = None
    about: str = ""

    def read_section(self, config: object) -> T:
        """Return the section of a RunConfig, which has it under the task's name."""
        section: T = getattr(config, self.name)
        return section
