"""A Slurm cluster of three virtual nodes on this machine: its own daemons, folder, ports and munge key."""

import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.slurm.configuration import NODES, write_files

SITE = Path(__file__).with_name("site")
DAEMONS = ("munged", "slurmctld", "slurmd")
STOPPED_LAST = {"slurmctld": 1, "munged": 2}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
START_S, JOB_S, RETURNED_S, POLL_S = 60.0, 400.0, 150.0, 0.2
LOG_CHARS = 3000


@dataclass
class Cluster:
    """The daemons of a cluster, and what a test asks of them."""

    folder: Path

    def run(self, *command: str | Path, is_needed: bool = True) -> str:
        """Run a command of Slurm and return its output."""
        words = [str(word) for word in command]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not is_needed, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, run_file: Path, *options: str) -> str:
        """Queue a run with `neobert-launch submit`, and return the number of the job."""
        answer = self.run("neobert-launch", "submit", run_file, "--to", "slurm", "--time", "10", *options)
        return re.findall(r"^job (\d+):", answer, re.MULTILINE)[0]

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of a job; empty if Slurm has forgotten it."""
        text = self.run("scontrol", "show", "job", "-o", number, is_needed=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, number: str) -> str:
        """Return the state of a job."""
        return self.job(number).get("JobState", "")

    def release(self, number: str) -> None:
        """Let a requeued job start soon: Slurm would have it wait two minutes.

        A node refuses a job whose credential is of the second in which it ended: `credential revoked`.
        """
        self.until(lambda: self.state(number) in ("PENDING", "RUNNING"), f"job {number} is not queued again")
        self.run("scontrol", "update", f"jobid={number}", "starttime=now+3", is_needed=False)

    def preempt(self, number: str) -> None:
        """Take the nodes of a job away, and give them back once it has been queued again."""
        with self.taken(number, self.nodes_of(number)):
            pass

    @contextmanager
    def taken(self, number: str, nodes: list[str]) -> Iterator[None]:
        """Take nodes of a job away inside the `with` block, which begins when it has been queued again."""
        restarts = int(self.job(number)["Restarts"])
        taker = self.run(
            "sbatch", "--parsable", "--partition=high", "--exclusive", f"--nodes={len(nodes)}", "--time=9",
            f"--nodelist={','.join(nodes)}", "--output=/dev/null", "--wrap=exec sleep 500",
        )  # fmt: skip
        try:
            self.until_restarted(number, restarts)
            self.release(number)
            yield
        finally:
            self.run("scancel", taker)

    def nodes_of(self, number: str) -> list[str]:
        """Return the names of the nodes of a job."""
        return self.run("scontrol", "show", "hostnames", self.job(number)["NodeList"]).split()

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

    def until_completed(self, number: str) -> None:
        """Wait until a job has ended without an error."""
        self.until_ended(number)
        job = self.job(number)
        log = Path(job["StdOut"]).read_text()[-LOG_CHARS:]
        assert job["JobState"] == "COMPLETED", f"{job['JobState']}, exit code {job['ExitCode']}: {log}"

    def until_ended(self, number: str) -> None:
        """Wait until a job has ended."""
        self.until(lambda: self.state(number) in ENDED, f"job {number} does not end", JOB_S)

    @contextmanager
    def lost(self, name: str, *, is_noticed: bool = False) -> Iterator[list[psutil.Process]]:
        """Lose a node in the `with` block: kill its daemon and freeze the processes of its jobs.

        Then the processes continue, and the daemon is started again when they have ended by themselves.
        `is_noticed`: Slurm knows at once, and not after its timeout.
        """
        processes = self.processes_on(name)
        for process in processes:
            process.suspend()
        self.end(self._pid_of(name), signal.SIGKILL)
        if is_noticed:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")
        try:
            yield processes
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            left = psutil.wait_procs(processes, timeout=RETURNED_S)[1]
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.start_node(name)
        assert not left, f"processes of the lost node do not end: {left}"

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self.run("slurmd", "-f", self.conf, "-N", name)

    def restore(self) -> None:
        """Leave the cluster as it was when it was started: no job, and all nodes idle."""
        self.run("scancel", "--user", getpass.getuser())
        for name in NODES:
            if not psutil.pid_exists(self._pid_of(name)):
                self.start_node(name)
        self.until_idle()

    def until_idle(self) -> None:
        """Wait until all nodes are ready for a job."""
        state = ("sinfo", "-h", "-N", "-p", "low", "-o", "%T")
        idle = ["idle"] * len(NODES)
        self.until(lambda: self.run(*state, is_needed=False).split() == idle, "the nodes do not get ready")

    def _pid_of(self, node: str) -> int:
        return int((self.folder / "run" / f"slurmd-{node}.pid").read_text())

    def end(self, pid: int, number: int) -> None:
        """End a daemon, which is no child of this process, and wait until it is gone."""
        os.kill(pid, number)
        self.until(lambda: not psutil.pid_exists(pid), f"process {pid} does not end", START_S)

    @property
    def conf(self) -> Path:
        """The configuration."""
        return self.folder / "slurm.conf"

    @contextmanager
    def slow_disk(self, **seconds: float) -> Iterator[None]:
        """Make each `os.fsync` or `os.rename` of jobs take the seconds given by its name."""
        self._slow_disk.write_text(json.dumps(seconds))
        try:
            yield
        finally:
            self._slow_disk.unlink()

    @property
    def _slow_disk(self) -> Path:
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
            "NEOBERT_TEST_SLOW_DISK": str(self._slow_disk),
        }


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start a cluster in a folder, with a short path: that of a socket has at most 107 characters."""
    cluster = Cluster(folder)
    write_files(folder, cluster.conf)
    with ExitStack() as stack:
        stack.callback(_stop, cluster)
        _start(cluster)
        yield cluster


def _start(cluster: Cluster) -> None:
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    assert not missing, f"apt-get install slurmctld slurmd slurm-client munge: {missing} not found"
    run, log = cluster.folder / "run", cluster.folder / "log"
    cluster.run(
        "munged", "--force", f"--key-file={cluster.folder}/munge.key", f"--socket={run}/munge.socket",
        f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log", f"--seed-file={run}/munge.seed",
    )  # fmt: skip
    cluster.run("slurmctld", "-f", cluster.conf)
    for name in NODES:
        cluster.start_node(name)
    cluster.until_idle()


def _stop(cluster: Cluster) -> None:
    """End the jobs and the daemons, each by its pid file; munged last, because the others need it."""
    with suppress(AssertionError):
        cluster.run("scancel", "--user", getpass.getuser())
    paths = (cluster.folder / "run").glob("*.pid")
    for path in sorted(paths, key=lambda path: STOPPED_LAST.get(path.stem, 0)):
        with suppress(OSError, ValueError):
            cluster.end(int(path.read_text()), signal.SIGTERM)
