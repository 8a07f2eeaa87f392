"""Files of a Slurm cluster of three virtual nodes on this machine, without a database and cgroups."""

import getpass
import os
import socket
from contextlib import ExitStack
from pathlib import Path

NODES = ("n1", "n2", "n3")
GRACE_S, KILL_WAIT_S, LOST_S = 20, 1, 20
# Preemption is by partition: `high` takes the nodes of jobs in `low`, which Slurm warns and queues again, and
# of those in `hasty`, which have no grace time.
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
KillWait={kill_wait_s}
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
PartitionName=hasty Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
NODE = "NodeName=%s NodeHostname={host} NodeAddr=127.0.0.1 Port=%d CPUs=2 RealMemory=4000"


def write_files(folder: Path, conf: Path) -> None:
    """Write the configuration, with free ports, and a key of munge."""
    ports = _free_ports(len(NODES) + 1)
    folder.chmod(0o755)  # munge refuses a socket that not everybody can reach
    for name in ("state", "log", "run"):
        (folder / name).mkdir(mode=0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    nodes = "\n".join(NODE % each for each in zip(NODES, ports[1:], strict=True))
    conf.write_text(
        CONF.replace("{nodes}", nodes).format(
            folder=folder,
            user=getpass.getuser(),
            host=socket.gethostname(),
            ports=ports,
            grace_s=GRACE_S,
            kill_wait_s=KILL_WAIT_S,
            lost_s=LOST_S,
        )
    )


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]
