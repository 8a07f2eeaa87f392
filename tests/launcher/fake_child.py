"""A child that pretends to measure: it starts one of its own, leaves a folder, and waits to be ended."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOREVER = [sys.executable, "-c", "import time; time.sleep(600)"]

with tempfile.TemporaryDirectory(prefix="fake-child-"):
    grandchild = subprocess.Popen(FOREVER, start_new_session=True)
    pids = Path("pids.partial")
    pids.write_text(f"{os.getpid()} {grandchild.pid}", encoding="utf-8")
    pids.rename("pids")
    # A signal just before a system call does not interrupt it: one long sleep could miss it.
    for _ in range(6000):
        time.sleep(0.1)
