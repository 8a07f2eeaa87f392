"""What the file system of a cluster may do to a job, for the processes of the tests' jobs.

It has no locks between nodes, each look at a directory takes 50 ms, which paces the steps of a run, and while
the file that NEOBERT_TEST_SLOW_DISK names exists, each sync takes 0.3 s.
"""

import fcntl
import os
import time

real_samestat, real_fsync = os.path.samestat, os.fsync


def samestat(*arguments):
    time.sleep(0.05)
    return real_samestat(*arguments)


def fsync(descriptor):
    if os.path.exists(os.environ.get("NEOBERT_TEST_SLOW_DISK", "")):
        time.sleep(0.3)
    real_fsync(descriptor)


os.path.samestat, os.fsync = samestat, fsync
fcntl.flock = lambda *_: None
