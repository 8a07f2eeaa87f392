"""The second node of a run: it knows its number, and waits for what the first one has checked."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.commands import train
from launcher.preflight import levels
from launcher.probes.probe import Probe
from launcher.process.trainer_process import Topology
from launcher.run import launch_records
from launcher.run.worker_nodes import (
    TIMEOUT_S,
    require_free_port,
    require_rendezvous,
    resolve_node_rank,
    wait_for_first_node,
)
from neobert.errors import ProjectError
from neobert.plan import Measured
from neobert.receipt import read_receipt, write_receipt
from tests.refusals import refusal_of

TWO = Topology(nnodes=2)


def test_a_node_s_number_is_given_or_slurm_s():
    assert resolve_node_rank(Topology(), {}).node_rank is None
    assert resolve_node_rank(Topology(nnodes=2, node_rank=1), {"SLURM_NODEID": "0"}).node_rank == 1
    assert resolve_node_rank(TWO, {"SLURM_NODEID": "1"}).node_rank == 1
    assert resolve_node_rank(TWO, {"PET_NODE_RANK": "1", "SLURM_NODEID": "0"}).node_rank == 1
    refusal_of(resolve_node_rank, "unknown-node", "the rank of this node is not set", TWO, {})


@pytest.mark.parametrize("reported", ["²", "\u0661", "1.0", "--1", "1\n", "one"])
def test_a_word_that_is_no_number_names_no_node(reported):
    with pytest.raises(ProjectError, match="the rank of this node is not set"):
        resolve_node_rank(TWO, {"SLURM_NODEID": reported})


def test_torchrun_s_own_words_have_the_last_say_on_a_node_s_number():
    given = Topology(nnodes=2, node_rank=0, extra=("--node_rank=1",))
    assert resolve_node_rank(given, {"PET_NODE_RANK": "0"}).node_rank == 1


@pytest.mark.parametrize(("nodes", "number"), [(1, 1), (2, 2), (2, -1)])
def test_a_node_that_the_run_has_not_waits_for_nobody(nodes, number, command):
    command("train", "-p", "cpu-demo", "--nnodes", str(nodes), "--node-rank", str(number)).refused(
        2, f"--node-rank is {number}"
    )


def test_slurm_s_number_is_of_this_run_too():
    assert resolve_node_rank(Topology(), {"SLURM_NODEID": "7"}).node_rank is None, (
        "a job has room for several runs"
    )
    refusal_of(resolve_node_rank, "unknown-node", "--node-rank is 7", TWO, {"SLURM_NODEID": "7"})


NOWHERE, WRONG = "no rendezvous endpoint", r"--standalone|no port"


@pytest.mark.parametrize(
    ("topology", "environment", "refusal"),
    [
        (Topology(nproc_per_node=2), {}, ""),
        (Topology(nnodes=2, master_addr="a"), {}, ""),
        (Topology(nnodes=2, rdzv_endpoint="a:1"), {}, ""),
        (Topology(nnodes=2, extra=("--rdzv_endpoint=a:1",)), {}, ""),
        (Topology(nnodes=2, rdzv_endpoint="a", extra=("--rdzv-backend", "c10d")), {}, ""),
        (Topology(nnodes=2, rdzv_endpoint="a:1"), {"PET_STANDALONE": "0", "PET_RDZV_ENDPOINT": "a"}, ""),
        (Topology(nnodes=2, extra=("--master-addr", "a")), {}, ""),
        (TWO, {"PET_MASTER_ADDR": "a"}, ""),
        (TWO, {"MASTER_ADDR": "torchrun does not read it"}, NOWHERE),
        (Topology(nnodes=2, extra=("--max-restarts=1",), master_port=1), {}, NOWHERE),
        (Topology(nnodes=2, extra=("--standalone",)), {"PET_RDZV_ENDPOINT": "a:1"}, WRONG),
        (TWO, {"PET_RDZV_ENDPOINT": "a:1", "PET_STANDALONE": "1"}, WRONG),
        (TWO, {"PET_RDZV_ENDPOINT": "a"}, WRONG),
        (Topology(nnodes=2, extra=("--rdzv-endpoint", "a:0")), {}, WRONG),
    ],
)
def test_nodes_without_a_place_where_they_can_meet_are_refused(topology, environment, refusal):
    with pytest.raises(ProjectError, match=refusal) if refusal else nullcontext():
        require_rendezvous(topology, environment)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine that somebody listens at."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_taken_is_told_before_the_checks(taken, command, tmp_path):
    place = ("--master-addr", "localhost", "--master-port", taken)
    command("train", "-p", "cpu-demo", "--nproc-per-node", 2, *place).refused(
        1, f"rendezvous port {taken} is already in use"
    )
    assert not (tmp_path / "runs").exists()


def test_a_port_is_asked_for_where_torchrun_will_open_it(taken):
    endpoint, known = f"first:{taken}", {"PET_MASTER_PORT": str(taken)}
    for sound in (
        Topology(nnodes=2, node_rank=1, rdzv_endpoint=endpoint),
        Topology(nproc_per_node=2, extra=("--rdzv-backend", "c10d"), rdzv_endpoint=endpoint),
        Topology(nproc_per_node=2),
        Topology(master_port=taken),
    ):
        require_free_port(sound, {})
    for topology in (
        Topology(nnodes=2, node_rank=0, rdzv_endpoint=endpoint),
        Topology(nnodes=2, node_rank=0, extra=("--rdzv-endpoint", endpoint)),
        Topology(nproc_per_node=2, master_addr="localhost", master_port=taken),
    ):
        refusal_of(require_free_port, "port-taken", "already in use", topology, {})
    with pytest.raises(ProjectError, match="already in use"):
        require_free_port(Topology(nnodes=2, node_rank=0, master_addr="first"), known)


def test_a_run_on_two_nodes_is_refused_without_a_place(command):
    command("train", "-p", "cpu-demo", "--nnodes", "2", "--node-rank", "0", "--dry-run").refused(
        2, "--rdzv-endpoint HOST:PORT"
    )


@pytest.mark.child
def test_it_waits_for_the_first_node(command, tmp_path):
    with pytest.raises(ProjectError, match="there is no receipt"):
        wait_for_first_node(tmp_path / "run", "0" * 64, timeout_s=0)
    answer = command("preflight", "-p", "cpu-demo", "--output", "run", "--output-format", "json")
    digest, now_s = answer.json["config_hash"], int(time.time())
    with pytest.raises(ProjectError, match="was issued for config"):
        wait_for_first_node(tmp_path / "run", "0" * 64, timeout_s=0)
    path, job = tmp_path / "run" / "receipt.json", {"SLURM_JOB_START_TIME": str(now_s - 3600)}
    wait_for_first_node(tmp_path / "run", digest, 0, job)
    os.utime(path, (now_s, now_s - 3 * 3600))
    wait_for_first_node(tmp_path / "run", digest, 0, {})
    with pytest.raises(ProjectError, match="older than this job"):
        wait_for_first_node(tmp_path / "run", digest, 0, job)


def test_the_first_node_is_given_as_long_as_its_checks_may_take(monkeypatch):
    before_s = levels.longest_s()
    assert TIMEOUT_S > before_s > sum(probe.deadline_s for probe in levels.HEAVY_PROBES)
    longer = (*levels.HEAVY_PROBES, Probe("another", lambda _: None, 700.0, is_heavy=True))
    monkeypatch.setattr(levels, "HEAVY_PROBES", longer)
    assert levels.longest_s() == before_s + 700


TWO_NODES = ("-p", "cpu-demo", "--set", "trainer.output_dir=run")
JOIN = ("train", *TWO_NODES, "--nnodes", "2", "--node-rank", "1", "--master-addr", "a")
WARNED = ("--set", "optimizer.betas=[0.95, 0.9]")


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders in which a first node was waited for; none ever comes."""
    folders: list[Path] = []

    def wait(folder: Path, _digest: str) -> None:
        folders.append(folder)
        raise ProjectError("no-first-node", "nobody came")

    monkeypatch.setattr(train, "wait_for_first_node", wait)
    return folders


@pytest.mark.child
def test_the_second_node_is_as_strict_as_the_first(command, waited):
    assert "nobody came" in command(*JOIN, *WARNED).err
    strict = command(*JOIN, *WARNED, "--strict")
    assert strict.code == 1
    assert "OPT001" in strict.out
    assert len(waited) == 1


@pytest.mark.child
def test_the_second_node_goes_by_no_receipt_that_does_not_cover_the_run(command, waited, monkeypatch):
    command("preflight", *TWO_NODES, "--set", "distributed.nnodes=2", "--output", "checked")
    assert "nobody came" in command(*JOIN, "--receipt", "checked").err
    command(*JOIN, "--set", "seed=8", "--receipt", "checked").refused(1, "seed was")
    path = Path("checked", "receipt.json")
    receipt = read_receipt(path)
    write_receipt(replace(receipt, expires_utc=receipt.created_utc), path)
    assert "it expired at" in command(*JOIN, "--receipt", "checked").err
    assert len(waited) == 1

    reported, judge, taken = (
        [],
        train.examine,
        {"step_time_s": 0.1, "memory_mib": 900.0, "source": "a rehearsal"},
    )
    write_receipt(replace(receipt, measured=taken), path)

    def examine(*arguments: Any, **named: Any) -> Any:
        reported.append(named["earlier"])
        return judge(*arguments, **named)

    monkeypatch.setattr(train, "examine", examine)
    assert "nobody came" in command(*JOIN, "--receipt", "checked").err
    assert reported == [Measured(**taken)], "it plans with what the receipt has measured"


FIRST = ("train", *TWO_NODES, "--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "--resume", "auto")


RECEIPT = Path("run", "receipt.json")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a receipt lay in the run directory, at every examination and where the trainer is to start."""
    looks: list[bool] = []
    check = train.examine

    def examine(*arguments: Any, **named: Any) -> Any:
        looks.append(RECEIPT.exists())
        return check(*arguments, **named)

    def supervise(*_: Any) -> Any:
        looks.append(RECEIPT.exists())
        raise ProjectError("enough", "no more is asked")

    monkeypatch.setattr(train, "examine", examine)
    monkeypatch.setattr(train, "supervise", supervise)
    return looks


@pytest.mark.child
def test_a_run_that_is_queued_again_has_no_receipt_until_it_is_checked_and_no_outcome_with_it(
    command, monkeypatch, seen
):
    left = []
    write = launch_records.write_results

    def write_results(*arguments: Any) -> None:
        left.append(Path("run", "outcome.json").exists())
        write(*arguments)

    monkeypatch.setattr(launch_records, "write_results", write_results)
    command(*FIRST)
    Path("run", "outcome.json").write_text('{"status": "preempted", "exit_code": 75}', encoding="utf-8")
    command(*FIRST)
    assert seen == [False, True] * 2
    assert left == [False, False]
    (earlier,) = json.loads(Path("run", "manifest.json").read_text(encoding="utf-8"))["earlier"]
    assert earlier["outcome"]["exit_code"] == 75, "the history of the run is kept"


@pytest.mark.parametrize("named", ["run/receipt.json", "../{here}/run"])
@pytest.mark.child
def test_a_receipt_that_the_launch_goes_by_stays(named, command, seen, tmp_path):
    command(*FIRST)
    command(*FIRST, "--receipt", named.format(here=tmp_path.name))
    assert seen == [False, True, True, True]


@pytest.mark.child
def test_a_receipt_in_a_folder_that_no_launch_made_stays(command, seen):
    same = ("--set", "distributed.nnodes=2", "--set", "trainer.resume_from_checkpoint=auto")
    command("preflight", *TWO_NODES, *same, "--output", "run")
    command(*FIRST)
    assert seen == [True]
    assert RECEIPT.exists()
