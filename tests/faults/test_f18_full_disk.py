"""F18: a disk that fills up while the run trains on it, by a real file system of a few hundred KiB.

Where this process may not mount one, `tests/training/test_faults.py` still has the kernel refuse a file.
"""

import subprocess

import pytest

pytestmark = pytest.mark.e2e

OWN_MOUNTS = ("unshare", "--map-root-user", "--mount")


def may_mount(folder):
    command = (*OWN_MOUNTS, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_disk_ends_the_run_and_costs_no_checkpoint(report, tmp_path):
    if not may_mount(tmp_path):
        pytest.skip("no file system may be mounted here, not even in a namespace of its own")
    found = report("disk_full", tmp_path)
    assert (found["full"], found["outcome"]["exit_code"]) == (4, 4)
    assert "could not be written: " in found["outcome"]["message"]
    assert "No space left on device" in found["outcome"]["message"]
    assert found["newest"] == max(found["kept"])
    assert set(found["left"]) == {*map(str, found["kept"]), "latest"}  # and no part of what did not fit
    assert (found["with room"], found["is_equal"]) == (0, True)
    assert found["steps"] == [2, 4, 6, 8, 10, 12]
