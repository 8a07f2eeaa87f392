"""F18, before the run: a disk that is too small is refused, on a real one where this user may mount it."""

import json
import os
import subprocess
import sys

import pytest

from tests.faults.conftest import ROOT
from tests.faults.test_f18_full_disk import OWN_MOUNTS, may_mount

PRIVATE = (*OWN_MOUNTS, "sh", "-c")


@pytest.mark.e2e
def test_a_real_disk_of_eight_mib(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if not may_mount(small):
        pytest.skip("this user may not mount a file system of its own")
    ask = f"{sys.executable} -m launcher preflight -p cpu-demo --level host --output-format json"

    def failed(size: str) -> set[str]:
        command = f"mount -t tmpfs -o size={size} tmpfs {small} && {ask} --set trainer.output_dir={small}/run"
        done = subprocess.run(
            (*PRIVATE, command), cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        checks = json.loads(done.stdout)["checks"]
        return {check["id"] for check in checks if check["status"] == "fail"}

    assert "CKP004" in failed("8m")
    assert "CKP004" not in failed("4g")
