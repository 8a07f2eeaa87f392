"""What a host has in store besides its size: a quota, a clock, a forgotten config file, another CUDA."""

import errno
import json
import os
import resource
import time
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.probes import disk, host, software
from launcher.probes.disk import reserve
from launcher.probes.host import MAX_BYTES, clock_behind_s, is_clock_synchronized, probe_accelerate_file
from validators.facts_host import AccelerateFileFacts


def refuse_with(code: int) -> Any:
    def allocate(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return allocate


@pytest.mark.child
def test_a_preflight_finds_the_quota_the_clock_and_the_file(command, tmp_path, monkeypatch):
    """A quota refuses the space that is free, the clock is 20 years late, accelerate is set up for FSDP 1."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", encoding="utf-8"
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(disk, "allocate", refuse_with(errno.EDQUOT))
    monkeypatch.setattr(host, "time", SimpleNamespace(time=lambda: time.time() - 20 * 365 * 86400))
    requested = ("preflight", "-p", "cpu-demo", "--level", "static,host", "--output-format", "json")
    found = {finding["code"]: finding for finding in command(*requested).json["findings"]}
    assert {"CKP004", "HST009", "HST012"} <= found.keys()
    assert "cannot be reserved: Disk quota exceeded" in found["CKP004"]["message"]
    assert "default_config.yaml selects FSDP 1 by accelerate" in found["HST009"]["message"]
    assert (found["CKP004"]["severity"], found["HST009"]["severity"]) == ("fail", "warn")
    chosen = {
        finding["code"] for finding in command(*requested, "distributed.mode=replicated").json["findings"]
    }
    assert "HST009" not in chosen


def test_the_bytes_of_a_checkpoint_are_reserved_and_given_back(tmp_path, monkeypatch):
    sizes = []
    allocate = disk.allocate

    def measured(descriptor: int, size_bytes: int) -> None:
        allocate(descriptor, size_bytes)
        sizes.append(os.fstat(descriptor).st_size)
        assert not list(tmp_path.iterdir())  # nothing is left, however this process ends

    monkeypatch.setattr(disk, "allocate", measured)
    assert reserve(tmp_path, 3.0, "ext4").status == "done"
    assert sizes == [3 * 2**20]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (errno.ENOSPC, "refused"),
        (errno.EDQUOT, "refused"),
        (errno.EOPNOTSUPP, "unsupported"),
        (errno.EFBIG, "unsupported"),
    ],
)
def test_a_reservation_that_is_refused(code, status, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "allocate", refuse_with(code))
    found = reserve(tmp_path, 1.0, "nfs")
    assert (found.status, found.error) == (status, os.strerror(code))
    assert reserve(tmp_path, 0.0, "nfs").status == "not tried"
    assert reserve(tmp_path, 1.0, "tmpfs").status == "not tried"


def test_a_limit_on_files_refuses_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "allocate", refuse_with(errno.EFBIG))
    monkeypatch.setattr("resource.getrlimit", lambda _: (5 * 2**20, resource.RLIM_INFINITY))
    assert reserve(tmp_path, 6.0, "ext4").status == "refused"


@pytest.mark.parametrize(
    ("share", "status"), [(0.5, "done"), (0.51, "not tried"), (1.0, "not tried"), (1.01, "refused")]
)
def test_a_disk_is_never_filled_to_see_whether_it_has_room(share, status, tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(disk, "free_space_mib", lambda _: 1000)
    monkeypatch.setattr(disk, "allocate", lambda _, size_bytes: reserved.append(size_bytes))
    assert reserve(tmp_path, 1000 * share, "ext4").status == status
    assert reserved == ([500 * 2**20] if status == "done" else [])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n", ("FSDP", "2", "")),
        ("distributed_type: FSDP\nfsdp_config: none\n", ("FSDP", "", "")),
        (json.dumps({"distributed_type": "DEEPSPEED"}), ("DEEPSPEED", "", "")),
        ("distributed_type: [1]\n", ("", "", "")),
        ("- a list\n", ("", "", "not a mapping")),
        ("a: !!python/object/apply:os.system [x]\n", ("", "", "not YAML")),
        ("[" * 1000, ("", "", "not YAML")),
        ("a: " + "x" * MAX_BYTES, ("", "", f"larger than {MAX_BYTES:,} bytes")),
    ],
    ids=["fsdp2", "fsdp", "deepspeed", "no text", "list", "code", "deep", "large"],
)
def test_accelerates_file_is_data(content, expected, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(content, encoding="utf-8")
    found = probe_accelerate_file({"ACCELERATE_CONFIG_FILE": str(path)})
    assert found is not None
    assert (found.distributed_type, found.fsdp_version, found.error) == expected


def test_where_accelerates_file_is_looked_for(tmp_path):
    home = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert probe_accelerate_file(home) is None
    missing = probe_accelerate_file({"ACCELERATE_CONFIG_FILE": str(tmp_path / "none.yaml")})
    assert missing is not None
    assert (missing.is_named, missing.error) == (True, "no such file")
    nowhere = probe_accelerate_file({"ACCELERATE_CONFIG_FILE": "~no-such-user/a.yaml"})
    assert nowhere is not None
    assert nowhere.error == "no such file"
    path = tmp_path / "cache" / "huggingface" / "accelerate" / "default_config.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"distributed_type": "MEGATRON_LM"}', encoding="utf-8")
    found = probe_accelerate_file({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found == AccelerateFileFacts(path=str(path), is_named=False, distributed_type="MEGATRON_LM")


def test_the_clock_against_the_newest_file(tmp_path):
    file = tmp_path / "a.py"
    file.touch()
    os.utime(file, (0, time.time() + 7200))
    assert 7100 < clock_behind_s(tmp_path) <= 7200
    os.utime(file, (0, 0))
    assert clock_behind_s(tmp_path) == 0.0
    assert is_clock_synchronized() in (True, False, None)


@pytest.mark.parametrize(
    ("state", "expected"), [(0, True), (5, False), (-1, None)], ids=["kept", "not kept", "refused"]
)
def test_the_state_of_the_clock(state, expected, monkeypatch):
    monkeypatch.setattr(host.ctypes, "CDLL", lambda _: SimpleNamespace(adjtimex=lambda _: state))
    assert is_clock_synchronized() is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("cuda: Optional[str] = None", ""),
        ("cuda_version = '9.9'", ""),
    ],
)
def test_the_cuda_of_torch_is_read_as_text(line, expected, tmp_path):
    file = tmp_path / "version.py"
    file.write_text(f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = '6.0'\n", encoding="utf-8")
    assert software.read_cuda_version(file) == expected
    assert software.read_cuda_version(tmp_path / "absent.py") == ""
    assert isinstance(software.torch_cuda_version(), str)


@pytest.mark.child
def test_checkpoints_of_another_trainer_are_named_with_the_way_to_use_them(command, tmp_path):
    for step in ("500", "1000", "notes"):
        (tmp_path / "run" / "model_checkpoints" / step).mkdir(parents=True)
    for step in ("500", "notes"):
        (tmp_path / "run" / "model_checkpoints" / step / "model.safetensors").touch()
    requested = ("preflight", "-p", "cpu-demo", "--level", "host", "--output-format", "json", "--set")
    newest = tmp_path / "run" / "model_checkpoints" / "500"
    (fresh,) = (
        found
        for found in command(*requested, "trainer.output_dir=run").json["findings"]
        if found["code"] == "CKP008"
    )
    assert "contains model_checkpoints of another trainer, which cannot be resumed" in fresh["message"]
    assert fresh["hint"].endswith(f"set model.pretrained_checkpoint to {newest} to start from its weights")
    resumed = command(
        *requested, "trainer.output_dir=new", "--set", f"trainer.resume_from_checkpoint={newest}"
    )
    (refused,) = (found for found in resumed.json["findings"] if found["code"] == "CKP007")
    assert refused["hint"].endswith(f"set model.pretrained_checkpoint to {newest} to start from its weights")
