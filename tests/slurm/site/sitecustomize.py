"""What the file system of a cluster may do to a job, for the processes of the tests' jobs.

It has no locks between nodes, each look at a directory takes 0.1 s, which paces the steps of a run, and while
the file that NEOBERT_TEST_SLOW_DISK names exists, the functions of `os` that it names take the seconds in it.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path

real_samestat = os.path.samestat


def samestat(*arguments):
    time.sleep(0.1)
    return real_samestat(*arguments)


def slow(name):
    real = getattr(os, name)

    def call(*arguments, **named):
        with suppress(OSError):
            time.sleep(json.loads(Path(os.environ["NEOBERT_TEST_SLOW_DISK"]).read_text()).get(name, 0))
        return real(*arguments, **named)

    return call


os.path.samestat, os.fsync, os.rename = samestat, slow("fsync"), slow("rename")
fcntl.flock = lambda *_: None
