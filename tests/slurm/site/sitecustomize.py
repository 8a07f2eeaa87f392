"""What the file system of a cluster may do to a job, for the processes of the tests' jobs.

It has no locks between nodes, each look at a directory takes 0.1 s, which paces the steps of a run, and while
the file that NEOBERT_TEST_SLOW_DISK names exists, each sync takes the seconds in it.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

real_samestat, real_fsync = os.path.samestat, os.fsync


def samestat(*arguments):
    time.sleep(0.1)
    return real_samestat(*arguments)


def fsync(descriptor):
    with suppress(OSError):
        time.sleep(float(Path(os.environ["NEOBERT_TEST_SLOW_DISK"]).read_text()))
    real_fsync(descriptor)


os.path.samestat, os.fsync = samestat, fsync
fcntl.flock = lambda *_: None
