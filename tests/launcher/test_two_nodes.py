"""Two nodes on this host, the second one first: its ranks are those of its number all the same."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.process import trainer_process
from launcher.process.trainer_process import Topology, trainer_command

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]
PATIENCE_S = 120


@pytest.fixture
def endpoint() -> str:
    """A port of this host that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the torchrun of a node; its rank's log is in a folder of the node's own."""
    monkeypatch.setattr(trainer_process, "TRAINER_MODULE", "fake_trainer")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE_TRAINER", "finish")
    started: list[subprocess.Popen[str]] = []

    def start(topology: Topology) -> subprocess.Popen[str]:
        node = Path(f"node_{topology.node_rank}").absolute()
        (node / "logs").mkdir(parents=True)
        command = trainer_command(node / "resolved.json", node / "logs", topology)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(command, text=True, **streams))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("given", ["option", "environment"])
def test_a_rank_follows_the_number_of_its_node(given, endpoint, agent, monkeypatch):
    if given == "environment":
        monkeypatch.setenv("PET_RDZV_ENDPOINT", endpoint)
        monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
        monkeypatch.setenv("PET_NODE_RANK", "0")
    place = endpoint if given == "option" else None
    nodes = [agent(Topology(nnodes=2, node_rank=number, rdzv_endpoint=place)) for number in (1, 0)]
    for child in nodes:
        out, _ = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0, out
    for number in range(2):
        (log,) = Path(f"node_{number}", "logs").glob("rank_*.log")
        assert log.read_text(encoding="utf-8").startswith(f"rank {number} of 2 trains")


def test_two_launches_make_one_run(endpoint, start_child):
    run = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=run", "--nnodes", "2", "--rdzv-endpoint")
    nodes = [start_child(*run, endpoint, "--node-rank", number, fake="finish") for number in "10"]
    for child in nodes:
        out, err = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0, out + err
        assert "finished at step 3" in out
    assert sorted(path.name for path in Path("run", "logs").glob("*.log")) == [
        "rank_0.log", "rank_1.log", "torchrun.log", "torchrun_1.log",
    ]  # fmt: skip
    assert json.loads(Path("run", "outcome.json").read_text(encoding="utf-8"))["exit_code"] == 0
