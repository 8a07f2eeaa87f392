"""Parameters of a batch job that runs `train` until the run has ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

RENDEZVOUS_PORT = 29400


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Parameters of a batch job; an engine ignores parameters that it does not support.

    Attributes:
        name: name of the job.
        command: the command to run on each node, without rendezvous options.
        nodes: number of nodes; the minimum of an elastic job.
        sizes: numbers of nodes on which an elastic job can train, in order; empty for any other job.
        gpus: GPUs of each node; 0 for a run on CPUs.
        time: time limit in a format of sbatch; empty for the default of the partition.
        lead_s: seconds between the warning and the end of the job, in which the run saves.
        requeue_limit: number of times that the job queues itself again.
        setup: shell commands to run before the launch, such as the activation of an environment.
        options: further options of the engine's own submit command, one per item.
        log: path of the log; %x is the name and %j the number of the job.
        folder: working directory; empty for the directory in which the job is submitted.
        gpu: name of the GPU, as SkyPilot lists it.
        image: container image; empty if the job runs without a container.
        volumes: mount path and name of each shared volume.
        tasks: number of tasks of a job array; 0 for a single run.
        is_sweep: whether each task trains the sweep point that has the number of the task.
        parallel: maximum number of tasks that run at the same time; 0 for no limit.
    """

    name: str
    command: tuple[str, ...]
    nodes: int = 1
    sizes: tuple[int, ...] = ()
    gpus: int = 0
    time: str = ""
    lead_s: int = 120
    requeue_limit: int = 20
    setup: str = ""
    options: tuple[str, ...] = ()
    log: str = "%x-%j.log"
    folder: str = ""
    gpu: str = ""
    image: str = ""
    volumes: tuple[tuple[str, str], ...] = ()
    tasks: int = 0
    is_sweep: bool = False
    parallel: int = 0

    @property
    def line(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)


class _BlockTextDumper(yaml.SafeDumper):
    """Dumper that writes multi-line strings in YAML's block style."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockTextDumper.add_representer(str, _represent_text)


def dump_yaml(*documents: Mapping[str, Any]) -> str:
    """Return the documents as YAML, separated by `---`, with the keys in the given order."""
    return yaml.dump_all(documents, Dumper=_BlockTextDumper, sort_keys=False, width=1000)
