"""Worker nodes of a run: node 0 owns the run directory, the others wait for its receipt."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launcher.io.files import convert_write_errors
from launcher.preflight.levels import longest_s
from launcher.probes.scheduler import job_start_s, node_number
from launcher.process.trainer_process import Topology, last_option_value
from launcher.rundir.directory import is_run_directory
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.receipt import CLOCK_SKEW, FILE_NAME, explain_mismatch, read_receipt, utc_now

NUMBER = re.compile(r"-?[0-9]+")
PORT = re.compile(r":[1-9]\d*$")
TORCHRUNS_PORT = "29500"
# Nodes of a job do not start at once; node 0 may wait for an earlier launch, or checksum a checkpoint.
START_MARGIN_S = 300.0
TIMEOUT_S = longest_s() + START_MARGIN_S
POLL_S = 1.0
HOW_TO_MEET = "add --rdzv-endpoint HOST:PORT on each node, with the host of node 0 and a free port there"


def resolve_node_rank(topology: Topology, environment: Mapping[str, str] = os.environ) -> Topology:
    """Return the topology with this node's rank, from the options, torchrun's environment or Slurm.

    Unchanged for a single node without a rank. Raises ProjectError if the rank is missing or out of range.
    """
    if topology.node_rank is None and topology.nnodes == 1:
        return topology
    declared = _effective_option("node_rank", topology, environment) or node_number(environment)
    if not NUMBER.fullmatch(declared):
        raise ProjectError(
            code="unknown-node",
            message=f"the run has {topology.nnodes} nodes, but the rank of this node is not set",
            hint="add --node-rank K (from 0); under Slurm it is set automatically",
            place="--node-rank",
            exit_code=EXIT_USAGE,
        )
    return _require_valid_rank(replace(topology, node_rank=int(declared)))


def _effective_option(name: str, topology: Topology, environment: Mapping[str, str]) -> str:
    """Return the value that torchrun will use for an option, or "" if it is not set.

    Order: its option after `--`, the option of `train`, its environment variable PET_NAME.
    """
    ours = getattr(topology, name)
    value = last_option_value(topology.extra, name.replace("_", "-")) or ("" if ours is None else str(ours))
    return value or environment.get(f"PET_{name.upper()}", "")


def _require_valid_rank(topology: Topology) -> Topology:
    """Return the topology. Raises ProjectError if its node rank is out of range, as the nodes would hang."""
    number, nodes = topology.node_rank, topology.nnodes
    if number not in range(nodes):
        raise ProjectError(
            code="unknown-node",
            message=f"--node-rank is {number}, but the run has {counted(nodes, 'node')}, numbered from 0",
            hint="correct --node-rank, or set the number of nodes with --nnodes N",
            place="--node-rank",
            exit_code=EXIT_USAGE,
        )
    return topology


def require_rendezvous(topology: Topology, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ProjectError if the nodes of a run cannot meet, because torchrun would wait on localhost.

    Several nodes need a rendezvous endpoint, with a port if they have ranks, and no --standalone.
    """
    if topology.nnodes == 1:
        return
    endpoint = _effective_option("rdzv_endpoint", topology, environment)
    if "--standalone" in topology.extra or environment.get("PET_STANDALONE", "0").strip("0"):
        raise _rendezvous_error(
            f"the run has {topology.nnodes} nodes, but torchrun has --standalone",
            f"remove --standalone (or PET_STANDALONE) and {HOW_TO_MEET}",
        )
    if not (endpoint or _effective_option("master_addr", topology, environment)):
        raise _rendezvous_error(
            f"the run has {topology.nnodes} nodes, but no rendezvous endpoint", HOW_TO_MEET
        )
    if endpoint and topology.is_numbered and not PORT.search(endpoint):
        raise _rendezvous_error(
            f"rendezvous endpoint {endpoint} has no port, which is required with node ranks",
            "pass a free port of node 0: --rdzv-endpoint HOST:PORT",
        )


def require_free_port(topology: Topology, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ProjectError if the rendezvous port of the first node is in use.

    torchrun would report it too, but minutes later, after all checks.
    """
    is_set = topology.nnodes > 1 or bool(_effective_option("master_port", topology, environment))
    if topology.node_rank or not (topology.needs_torchrun and topology.is_numbered and is_set):
        return
    endpoint = _effective_option("rdzv_endpoint", topology, environment)
    port = (
        endpoint.rpartition(":")[2]
        or _effective_option("master_port", topology, environment)
        or TORCHRUNS_PORT
    )
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"rendezvous port {port} is already in use"
            hint = (
                f"choose a free port, or find the process that uses port {port}: ss -ltnp 'sport = :{port}'"
            )
            raise ProjectError("port-taken", message, hint, "--rdzv-endpoint", EXIT_CHECK_FAILED) from None


def _rendezvous_error(message: str, hint: str) -> ProjectError:
    return ProjectError(
        code="unknown-meeting-place",
        message=message,
        hint=hint,
        place="--rdzv-endpoint",
        exit_code=EXIT_USAGE,
    )


def withdraw_receipt(folder: Path, config_digest: str, given: Path | None) -> None:
    """Invalidate the previous launch's receipt so that worker nodes do not start from it.

    A receipt that this launch got with --receipt stays, because the other nodes got it too.
    """
    path = folder / FILE_NAME
    is_named = given is not None and path.resolve() in (given.resolve(), given.resolve() / FILE_NAME)
    if is_run_directory(folder) and not is_named and _read_config_digest(path) == config_digest:
        with convert_write_errors(path):
            path.unlink(missing_ok=True)


def _read_config_digest(receipt: Path) -> str:
    try:
        return read_receipt(receipt).config_digest
    except ProjectError:
        return ""


def wait_for_first_node(
    folder: Path,
    config_digest: str,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Wait until node 0 has checked this run. Raises ProjectError after `timeout_s`.

    A receipt from before the start of the Slurm job belongs to an earlier launch; node 0 will withdraw it.
    """
    deadline = time.monotonic() + timeout_s
    began_s = job_start_s(environment) or 0.0
    while reasons := _why_not_ready(folder, config_digest, began_s):
        if time.monotonic() > deadline:
            raise ProjectError(
                code="no-first-node",
                message=f"node 0 has not checked this run within {timeout_s:g} s: {reasons}",
                hint="launch node 0 with the same command; all nodes must share the run directory",
                place=str(folder),
                exit_code=EXIT_CHECK_FAILED,
            )
        time.sleep(POLL_S)


def _why_not_ready(folder: Path, config_digest: str, began_s: float) -> str:
    path = folder / FILE_NAME
    try:
        receipt, written_s = read_receipt(path), path.stat().st_mtime
    except ProjectError as error:
        return error.message
    except OSError:
        return "the receipt of an earlier launch was just deleted"
    # Clocks of node and file server may differ by CLOCK_SKEW.
    if written_s + CLOCK_SKEW.total_seconds() < began_s:
        return "the receipt is older than this job"
    return "; ".join(explain_mismatch(receipt, config_digest, utc_now()))
