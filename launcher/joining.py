"""The second node of a run and those after it: the first one owns the run directory, the others wait."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launcher.levels import longest_s
from launcher.process import Topology, said
from neobert.counting import counted
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.receipt import FILE_NAME, explain_mismatch, read_receipt, utc_now

NODE_ID_ENV = "SLURM_NODEID"
PORT = re.compile(r":[1-9]\d*$")
# Nodes of one job do not begin at once, and the first one may wait for an earlier launch to let go.
START_MARGIN_S = 300.0
PATIENCE_S = longest_s() + START_MARGIN_S
LOOK_EVERY_S = 1.0


def with_node_rank(topology: Topology, environment: Mapping[str, str] = os.environ) -> Topology:
    """Know which node this is. Raises ProjectError where nobody says, or says what cannot be."""
    if topology.node_rank is None and topology.nnodes == 1:
        return topology
    declared = _told("node_rank", topology, environment) or environment.get(NODE_ID_ENV, "")
    if not declared.removeprefix("-").isdigit():
        raise ProjectError(
            code="unknown-node",
            message=f"the run has {topology.nnodes} nodes, and nothing says which one this is",
            hint="add --node-rank K, from 0; Slurm says it itself",
            place="--node-rank",
            exit_code=EXIT_USAGE,
        )
    return _within(replace(topology, node_rank=int(declared)))


def _told(name: str, topology: Topology, environment: Mapping[str, str]) -> str:
    """What torchrun takes for this name: its own words first, its variable of the environment last."""
    ours = getattr(topology, name)
    words = said(topology.extra, name.replace("_", "-")) or ("" if ours is None else str(ours))
    return words or environment.get(f"PET_{name.upper()}", "")


def _within(topology: Topology) -> Topology:
    """Another number would wait for a first node that never comes, or is never waited for."""
    number, nodes = topology.node_rank, topology.nnodes
    if number not in range(nodes):
        raise ProjectError(
            code="unknown-node",
            message=f"there is no node {number}: the run has {counted(nodes, 'node')}, numbered from 0",
            hint="mend --node-rank, or say how many nodes there are: --nnodes N",
            place="--node-rank",
            exit_code=EXIT_USAGE,
        )
    return topology


def require_meeting_place(topology: Topology, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ProjectError where nobody says it: torchrun would have each node wait for the others at home."""
    if topology.nnodes == 1:
        return
    endpoint = _told("rdzv_endpoint", topology, environment)
    if "--standalone" in topology.extra or environment.get("PET_STANDALONE", "0").strip("0"):
        raise _nowhere(f"the run has {topology.nnodes} nodes, and torchrun is told to stand alone")
    if not (endpoint or _told("master_addr", topology, environment)):
        raise _nowhere(f"the run has {topology.nnodes} nodes, and nothing says where they meet")
    if endpoint and topology.is_numbered and not PORT.search(endpoint):
        raise _nowhere(f"nodes that are numbered cannot meet at {endpoint}: it names no port")


def _nowhere(message: str) -> ProjectError:
    return ProjectError(
        code="unknown-meeting-place",
        message=message,
        hint="add --rdzv-endpoint HOST:PORT on each: the name of the first node, and a port free there",
        place="--rdzv-endpoint",
        exit_code=EXIT_USAGE,
    )


def wait_for_first_node(folder: Path, config_digest: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until the first node has checked this very run. Raises ProjectError where it does not."""
    deadline = time.monotonic() + patience_s
    while reasons := _missing(folder, config_digest):
        if time.monotonic() > deadline:
            raise ProjectError(
                code="no-first-node",
                message=f"the first node has not checked this run within {patience_s:g} s: {reasons}",
                hint="launch node 0 with the same command, on a file system that both see",
                place=str(folder),
                exit_code=EXIT_CHECK_FAILED,
            )
        time.sleep(LOOK_EVERY_S)


def _missing(folder: Path, config_digest: str) -> str:
    try:
        receipt = read_receipt(folder / FILE_NAME)
    except ProjectError as error:
        return error.message
    return "; ".join(explain_mismatch(receipt, config_digest, utc_now()))
