"""The second node of a run and those after it: the first one owns the run directory, the others wait."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launcher.io.files import writing
from launcher.io.slurm import job_start_s, node_number
from launcher.preflight.levels import longest_s
from launcher.process.trainer_process import Topology, said
from launcher.rundir.directory import is_run_directory
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.receipt import CLOCK_SKEW, FILE_NAME, explain_mismatch, read_receipt, utc_now

NUMBER = re.compile(r"-?[0-9]+")
PORT = re.compile(r":[1-9]\d*$")
TORCHRUNS_PORT = "29500"
# Nodes of one job do not begin at once; the first may wait for an earlier launch, or sum up a checkpoint.
START_MARGIN_S = 300.0
PATIENCE_S = longest_s() + START_MARGIN_S
LOOK_EVERY_S = 1.0


def with_node_rank(topology: Topology, environment: Mapping[str, str] = os.environ) -> Topology:
    """Know which node this is. Raises ProjectError where nobody says, or says what cannot be."""
    if topology.node_rank is None and topology.nnodes == 1:
        return topology
    declared = _told("node_rank", topology, environment) or node_number(environment)
    if not NUMBER.fullmatch(declared):
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


def require_free_port(topology: Topology, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ProjectError where something listens at the port that torchrun would open on the first node.

    torchrun says so itself, minutes of checks later.
    """
    is_told = topology.nnodes > 1 or bool(_told("master_port", topology, environment))
    if topology.node_rank or not (topology.needs_torchrun and topology.is_numbered and is_told):
        return
    endpoint = _told("rdzv_endpoint", topology, environment)
    port = endpoint.rpartition(":")[2] or _told("master_port", topology, environment) or TORCHRUNS_PORT
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(port) from None


def _taken(port: str) -> ProjectError:
    return ProjectError(
        code="port-taken",
        message=f"port {port} of this node, where the processes are to meet, is taken by another program",
        hint=f"name a free port, or see who listens there: ss -ltnp 'sport = :{port}'",
        place="--rdzv-endpoint",
        exit_code=EXIT_CHECK_FAILED,
    )


def _nowhere(message: str) -> ProjectError:
    return ProjectError(
        code="unknown-meeting-place",
        message=message,
        hint="add --rdzv-endpoint HOST:PORT on each: the name of the first node, and a port free there",
        place="--rdzv-endpoint",
        exit_code=EXIT_USAGE,
    )


def withdraw_receipt(folder: Path, config_digest: str, named: Path | None) -> None:
    """Take away what an earlier launch of this very run was granted, lest other nodes begin on it.

    The receipt that this launch was told to go by stays: so were the launches of the other nodes.
    """
    path = folder / FILE_NAME
    is_named = named is not None and path.resolve() in (named.resolve(), named.resolve() / FILE_NAME)
    if is_run_directory(folder) and not is_named and _digest_in(path) == config_digest:
        with writing(path):
            path.unlink(missing_ok=True)


def _digest_in(receipt: Path) -> str:
    try:
        return read_receipt(receipt).config_digest
    except ProjectError:
        return ""


def wait_for_first_node(
    folder: Path,
    config_digest: str,
    patience_s: float = PATIENCE_S,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Wait until the first node has checked this very run. Raises ProjectError where it does not.

    A receipt from before the Slurm job is an earlier launch's, which the first node has yet to withdraw.
    """
    deadline = time.monotonic() + patience_s
    began_s = job_start_s(environment) or 0.0
    while reasons := _missing(folder, config_digest, began_s):
        if time.monotonic() > deadline:
            raise ProjectError(
                code="no-first-node",
                message=f"the first node has not checked this run within {patience_s:g} s: {reasons}",
                hint="launch node 0 with the same command, on a file system that both see",
                place=str(folder),
                exit_code=EXIT_CHECK_FAILED,
            )
        time.sleep(LOOK_EVERY_S)


def _missing(folder: Path, config_digest: str, began_s: float) -> str:
    path = folder / FILE_NAME
    try:
        receipt, written_s = read_receipt(path), path.stat().st_mtime
    except ProjectError as error:
        return error.message
    except OSError:
        return "the receipt of an earlier launch has just been withdrawn"
    if written_s + CLOCK_SKEW.total_seconds() < began_s:
        return "the receipt is older than this job"
    return "; ".join(explain_mismatch(receipt, config_digest, utc_now()))
