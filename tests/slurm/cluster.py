"""A Slurm cluster of three virtual nodes on this machine: its own daemons, folder, ports and munge key."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SITE = Path(__file__).with_name("site")
NODES = ("n1", "n2", "n3")
DAEMONS = ("munged", "slurmctld", "slurmd")
STOPPED_LAST = {"slurmctld": 1, "munged": 2}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
GRACE_S, LOST_S = 20, 20
START_S, JOB_S, POLL_S = 60.0, 240.0, 0.2
# Preemption is by partition: `high` takes the nodes of jobs in `low`, which Slurm warns and queues again.
CONF = """\
ClusterName=local
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=10
ReturnToService=2
SlurmdTimeout={lost_s}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_min_interval=200000,bf_interval=1
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
{nodes}
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s} Default=YES
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
NODE = "NodeName=%s NodeHostname={host} NodeAddr=127.0.0.1 Port=%d CPUs=2 RealMemory=4000"


@dataclass
class Cluster:
    """The daemons of a cluster, and what a test asks of them."""

    folder: Path

    def ask(self, *command: str | Path, is_needed: bool = True) -> str:
        """Run a command of Slurm and return its output."""
        words = [str(word) for word in command]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not is_needed, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, run_file: Path, *options: str) -> str:
        """Queue a run with `neobert-launch submit`, and return the number of the job."""
        answer = self.ask("neobert-launch", "submit", run_file, "--to", "slurm", "--time", "10", *options)
        return re.findall(r"^job (\d+):", answer, re.MULTILINE)[0]

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of a job; empty if Slurm has forgotten it."""
        text = self.ask("scontrol", "show", "job", "-o", number, is_needed=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, number: str) -> str:
        """Return the state of a job."""
        return self.job(number).get("JobState", "")

    def release(self, number: str) -> None:
        """Let a requeued job start soon: Slurm would have it wait two minutes.

        A node refuses a job whose credential is of the second in which it ended: `credential revoked`.
        """
        self.until(lambda: self.state(number) in ("PENDING", "RUNNING"), f"job {number} is not queued again")
        self.ask("scontrol", "update", f"jobid={number}", "starttime=now+3", is_needed=False)

    def preempt(self, number: str) -> None:
        """Take the nodes of a job away, and give them back once it has been queued again."""
        restarts, nodes = int(self.job(number)["Restarts"]), self.nodes_of(number)
        taker = self.ask(
            "sbatch", "--parsable", "--partition=high", "--exclusive", f"--nodes={len(nodes)}", "--time=5",
            f"--nodelist={','.join(nodes)}", "--output=/dev/null", "--wrap=exec sleep 200",
        )  # fmt: skip
        self.until_restarted(number, restarts)
        self.ask("scancel", taker)
        self.release(number)

    def nodes_of(self, number: str) -> list[str]:
        """Return the names of the nodes of a job."""
        return self.ask("scontrol", "show", "hostnames", self.job(number)["NodeList"]).split()

    def processes_on(self, node: str) -> list[psutil.Process]:
        """Return the processes of jobs on a node; its daemon is none of them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if environment.get("SLURMD_NODENAME") == node and environment.get("SLURM_CONF") == str(
                    self.conf
                ):
                    found.append(process)
        return found

    def until_restarted(self, number: str, restarts: int) -> None:
        """Wait until a job was queued again more often than before."""

        def is_restarted() -> bool:
            job = self.job(number)
            assert job["JobState"] not in ENDED, f"job {number}: {job}"
            return int(job["Restarts"]) > restarts

        self.until(is_restarted, f"job {number} is not queued again")

    def until_ended(self, number: str, timeout_s: float = JOB_S) -> None:
        """Wait until a job has ended."""
        self.until(lambda: self.state(number) in ENDED, f"job {number} does not end", timeout_s)

    @contextmanager
    def lost(self, name: str) -> Iterator[list[psutil.Process]]:
        """Lose a node in the `with` block: kill its daemon and freeze the processes of its jobs.

        Then the processes continue, and the daemon is started again when they have ended.
        """
        processes = self.processes_on(name)
        for process in processes:
            process.suspend()
        self._kill_node(name)
        try:
            yield processes
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            assert not psutil.wait_procs(processes, timeout=60)[1], "processes of the lost node do not end"
            self.start_node(name)

    def _kill_node(self, name: str) -> None:
        self.end(int((self.folder / "run" / f"slurmd-{name}.pid").read_text()), signal.SIGKILL)

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self.ask("slurmd", "-f", self.conf, "-N", name)

    def end(self, pid: int, number: int) -> None:
        """End a daemon, which is no child of this process, and wait until it is gone."""
        os.kill(pid, number)
        self.until(lambda: not psutil.pid_exists(pid), f"process {pid} does not end", START_S)

    @property
    def conf(self) -> Path:
        """The configuration."""
        return self.folder / "slurm.conf"

    @property
    def slow_disk(self) -> Path:
        """The file that makes saves slow while it exists."""
        return self.folder / "slow-disk"

    @staticmethod
    def until(holds: Callable[[], bool], otherwise: str, timeout_s: float = JOB_S) -> None:
        """Wait until something holds; fail the test with `otherwise` after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end_s, otherwise
            time.sleep(POLL_S)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(SITE),
            "SLURM_CONF": str(self.conf),
            "OMP_NUM_THREADS": "1",
            "NEOBERT_HEAD": "127.0.0.1",  # names of virtual nodes do not resolve
            "NEOBERT_TEST_SLOW_DISK": str(self.slow_disk),
        }


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start a cluster in a folder, with a short path: that of a socket has at most 107 characters."""
    cluster = Cluster(folder)
    _write_files(cluster)
    with ExitStack() as stack:
        stack.callback(_stop, cluster)
        _start(cluster)
        yield cluster


def _write_files(cluster: Cluster) -> None:
    folder, ports = cluster.folder, _free_ports(len(NODES) + 1)
    folder.chmod(0o755)  # munge refuses a socket that not everybody can reach
    for name in ("state", "log", "run"):
        (folder / name).mkdir(mode=0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    nodes = "\n".join(NODE % each for each in zip(NODES, ports[1:], strict=True))
    cluster.conf.write_text(
        CONF.replace("{nodes}", nodes).format(
            folder=folder,
            user=getpass.getuser(),
            host=socket.gethostname(),
            ports=ports,
            grace_s=GRACE_S,
            lost_s=LOST_S,
        )
    )


def _start(cluster: Cluster) -> None:
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    assert not missing, f"apt-get install slurmctld slurmd slurm-client munge: {missing} not found"
    run, log = cluster.folder / "run", cluster.folder / "log"
    cluster.ask(
        "munged", "--force", f"--key-file={cluster.folder}/munge.key", f"--socket={run}/munge.socket",
        f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log", f"--seed-file={run}/munge.seed",
    )  # fmt: skip
    cluster.ask("slurmctld", "-f", cluster.conf)
    for name in NODES:
        cluster.start_node(name)
    cluster.until(
        lambda: (
            cluster.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%T", is_needed=False).split()
            == ["idle"] * len(NODES)
        ),
        "the nodes do not get ready",
        START_S,
    )


def _stop(cluster: Cluster) -> None:
    """End the jobs and the daemons, each by its pid file; munged last, because the others need it."""
    with suppress(AssertionError):
        cluster.ask("scancel", "--user", getpass.getuser())
    paths = (cluster.folder / "run").glob("*.pid")
    for path in sorted(paths, key=lambda path: STOPPED_LAST.get(path.stem, 0)):
        with suppress(OSError, ValueError):
            cluster.end(int(path.read_text()), signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]
