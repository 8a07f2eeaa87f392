"""Every input of a rehearsal changes the digest of its kind, and a new terminal changes none."""

import json
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.preflight import rehearsal_inputs as module
from launcher.preflight.rehearsal_inputs import rehearsal_inputs
from profiles.registry import ResolvedRun, resolve_run

Inputs = dict[str, str]
Patch = pytest.MonkeyPatch
Change = Callable[[Path, Patch], object]
REACHING = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_LOGS",
    "TORCHINDUCTOR_CACHE_DIR", "TORCHDYNAMO_DISABLE", "TRITON_CACHE_DIR", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "OPENBLAS_CORETYPE", "MALLOC_ARENA_MAX", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH",
    "PYTHONHASHSEED", "PATH", "CC", "TMPDIR", "HOME", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE",
    "TOKENIZERS_PARALLELISM", "ACCELERATE_CONFIG_FILE", "NEOBERT_CACHE", "WANDB_MODE", "GLIBC_TUNABLES",
)  # fmt: skip
OF_A_TERMINAL = (
    *module.TERMINAL_AND_JOB, "SSH_TTY", "TMUX_PANE", "SLURM_JOB_ID", "KITTY_PID", "XDG_SESSION_ID",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with a project, an installed package, an editable one, and weights."""
    (tmp_path / "project" / "neobert").mkdir(parents=True)
    (tmp_path / "project" / "neobert" / "train.py").write_text("STEPS = 1\n")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "module.py").write_text("VALUE = 1\n")
    installed(tmp_path, "wheel", {"RECORD": "wheel.py,sha256=aaaa,1\n"})
    origin = {"url": f"file://{tmp_path / 'source'}", "dir_info": {"editable": True}}
    installed(tmp_path, "editable", {"RECORD": "", "direct_url.json": json.dumps(origin)})
    for name in ("weights", "continued"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"0" * 64)
    (tmp_path / "weights" / "newest").symlink_to("10")
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(module, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(module, "PROJECT_ROOT", tmp_path / "project")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path


def installed(folder: Path, name: str, files: dict[str, str]) -> None:
    target = folder / "site" / f"{name}-1.0.dist-info"
    target.mkdir(parents=True)
    for file, text in {"METADATA": f"Name: {name}\nVersion: 1.0\n", **files}.items():
        (target / file).write_text(text)


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def a_run(place: Path, *more: str, profile: str = "a100-prod") -> ResolvedRun:
    given = (
        f"model.pretrained_checkpoint={place / 'weights'}",
        f"trainer.continue_from={place / 'continued'}",
        f"trainer.output_dir={place / 'run'}",
    )
    return resolve_run(profile, overrides=(*given, *more))


def edit_in_place(path: Path) -> None:
    """Change the content of a file, with its size and its times put back."""
    found = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"1")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns)


def fewer_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def affinity(pid: int, every: int = len(os.sched_getaffinity(0))) -> set[int]:
    """One processor for this process, and all of them for another."""
    return set(range(every if pid else 1))


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)


def patched(target: object, name: str, value: object) -> Change:
    return lambda _, patch: patch.setattr(target, name, value)


def edited(file: str) -> Change:
    return lambda place, _: edit_in_place(place / file)


def written(file: str, text: str) -> Change:
    return lambda place, _: (place / file).write_text(text)


def led_elsewhere(place: Path, _: Patch) -> None:
    (place / "weights/newest").unlink()
    (place / "weights/newest").symlink_to("20")


WHEEL, WEIGHTS = "site/wheel-1.0.dist-info", "weights/model.safetensors"
CHANGES: dict[str, tuple[str, Change]] = {
    "an edited module": ("code", edited("project/neobert/train.py")),
    "a new module": ("code", written("project/neobert/new.py", "")),
    "a removed module": ("code", lambda place, _: (place / "project/neobert/train.py").unlink()),
    "another wheel of one version": ("packages", written(f"{WHEEL}/RECORD", "wheel.py,sha256=bbbb,1\n")),
    "an upgrade": ("packages", written(f"{WHEEL}/METADATA", "Name: wheel\nVersion: 2\n")),
    "a package that was removed": ("packages", lambda place, _: shutil.rmtree(place / WHEEL)),
    "a package that was added": ("packages", lambda place, _: installed(place, "another", {})),
    "an edited editable package": ("packages", edited("source/module.py")),
    "another interpreter": ("process", patched(sys, "prefix", "/another")),
    "another build of Python": ("process", patched(sys, "version", "3.11 (debug)")),
    "another user": ("process", patched(os, "geteuid", lambda: 12345)),
    "another working folder": ("process", lambda place, patch: patch.chdir(place / "weights")),
    "fewer processors": ("process", patched(os, "sched_getaffinity", affinity)),
    "a limit": ("process", lambda *_: fewer_open_files()),
    "a limit of the container": ("process", written("cgroup/memory.max", "1000000")),
    "another boot": ("machine", patched(module, "boot_id", lambda: "another")),
    "another kernel": ("machine", patched(os, "uname", lambda: ("Linux", "node", "7.0"))),
    "weights edited in place": ("weights", edited(WEIGHTS)),
    "weights put in their place": ("weights", lambda place, _: replaced(place / WEIGHTS)),
    "weights that are gone": ("weights", lambda place, _: shutil.rmtree(place / "weights")),
    "a link that leads elsewhere": ("weights", led_elsewhere),
    "the run that is continued": ("weights", edited("continued/model.safetensors")),
    "another disk": ("file system", patched(module, "nearest_existing_path", lambda _: Path("/dev/shm"))),
    "a variable": ("environment", lambda _, patch: patch.setenv("A_NAME_THAT_NOBODY_KNOWS", "changed")),
}


def differing(before: Inputs, after: Inputs) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_changed_changes_its_digest_alone(change, place, monkeypatch, limit):
    run = a_run(place)
    kind, make = CHANGES[change]
    before = rehearsal_inputs(run)
    assert rehearsal_inputs(run) == before
    make(place, monkeypatch)
    assert differing(before, rehearsal_inputs(run)) == {kind}


def test_another_profile_with_the_same_config_is_another_run(place):
    runs = [a_run(place, profile=name) for name in ("a100-prod", "h100-prod")]
    assert differing(*map(rehearsal_inputs, runs)) == {"profile"}


def test_every_kind_of_input_is_changed_by_some_test(place):
    assert {kind for kind, _ in CHANGES.values()} | {"profile"} == rehearsal_inputs(a_run(place)).keys()


def test_variables_count_unless_they_are_of_the_terminal_or_of_the_job():
    given = dict.fromkeys((*REACHING, *OF_A_TERMINAL), "any")
    assert module.compared_environment(given) == dict.fromkeys(REACHING, "any")


def test_bytecode_and_files_that_are_no_code_change_nothing(place):
    before = rehearsal_inputs(a_run(place))
    for folder in ("project/neobert", "source"):
        (place / folder / "__pycache__").mkdir()
        (place / folder / "__pycache__" / "module.pyc").write_bytes(b"1")
    (place / "project" / "notes.txt").write_text("")
    assert rehearsal_inputs(a_run(place)) == before


def test_what_cannot_be_told_matches_nothing(place, monkeypatch):
    run = a_run(place)
    with monkeypatch.context() as patch:
        patch.setattr(module, "boot_id", lambda: "")
        assert rehearsal_inputs(run) == {}
    (place / "project/neobert/train.py").unlink()
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind(str(place / "project/neobert/socket.py"))
        assert rehearsal_inputs(run) == {}


@pytest.mark.parametrize(
    "origin", ["{", "[]", "{}", '{"dir_info": {}}', '{"dir_info": {"editable": true}}', '{"dir_info": 1}']
)
def test_a_package_whose_origin_cannot_be_read_is_compared_by_its_record(place, origin):
    before = rehearsal_inputs(a_run(place))
    (place / "site/editable-1.0.dist-info/direct_url.json").write_text(origin)
    assert differing(before, rehearsal_inputs(a_run(place))) == {"packages"}


def test_a_package_that_is_not_editable_is_compared_by_its_record(place):
    origin = {"url": f"file://{place / 'source'}", "dir_info": {"editable": False}}
    (place / "site/editable-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    before = rehearsal_inputs(a_run(place))
    edit_in_place(place / "source/module.py")
    assert rehearsal_inputs(a_run(place)) == before


def test_the_project_itself_is_compared_by_its_code(place):
    origin = {"url": f"file://{place / 'source'}", "dir_info": {"editable": True}}
    installed(place, module.PROJECT, {"direct_url.json": json.dumps(origin)})
    shutil.rmtree(place / "site/editable-1.0.dist-info")
    before = rehearsal_inputs(a_run(place))
    (place / "source" / "run.log").write_text("a file that a run leaves in the checkout")
    assert rehearsal_inputs(a_run(place)) == before


def test_a_record_that_cannot_be_read_matches_nothing(place):
    (place / WHEEL / "RECORD").write_bytes(b"caf\xe9")
    assert rehearsal_inputs(a_run(place)) == {}
