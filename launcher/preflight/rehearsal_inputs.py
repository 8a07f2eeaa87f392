"""Digests of a rehearsal's inputs, in addition to config, text, commit, driver and GPUs.

A stored receipt is reused only if all digests are equal. Environment variables are compared unless they are
known to describe a terminal or a batch job.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from json import loads
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from launcher.io.shadowed_modules import OWN_MODULES, PROJECT_ROOT
from launcher.probes.host import CGROUP
from launcher.probes.probe import nearest_existing_path
from launcher.probes.software import PROJECT
from launcher.rundir.directory import run_directory
from neobert.clock import boot_id
from neobert.config.canonical import sha256
from neobert.families.table import initial_weights
from profiles.registry import ResolvedRun

TERMINAL_AND_JOB = {
    "_", "COLORTERM", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "FORCE_COLOR", "GPG_TTY",
    "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "LS_COLORS", "NO_COLOR", "OLDPWD", "PWD", "SHLVL", "STY",
    "SYSTEMD_EXEC_PID", "TERM", "TMUX", "WAYLAND_DISPLAY", "WINDOWID", "WT_SESSION",
}  # fmt: skip
"""Environment variables that differ between terminals and jobs and do not affect the computation."""
TERMINAL_AND_JOB_PREFIXES = (
    "ALACRITTY_", "GNOME_TERMINAL_", "ITERM_", "KITTY_", "KONSOLE_", "SLURM_", "SSH_", "TERM_", "TMUX_",
    "VSCODE_", "VTE_", "WEZTERM_", "XDG_SESSION_", "ZELLIJ_",
)  # fmt: skip
"""Prefixes of such variables, and of Slurm's, which every launch checks again."""
INSTALLED = ("RECORD", "METADATA", "PKG-INFO", "")
"""Metadata files with name, version and digests of a distribution; "" if its metadata is a single file."""
ORIGIN = "direct_url.json"
CGROUP_LIMITS = ("cpu.max", "memory.max")
LIMITS = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))


def rehearsal_inputs(run: ResolvedRun) -> dict[str, str]:
    """Return a digest per kind of input, or an empty dict if an input cannot be read."""
    if not boot_id():
        return {}
    try:
        inputs = {
            "profile": run.profile.digest if run.profile else "",
            "environment": compared_environment(os.environ),
            "code": [
                [str(path), hashlib.sha256(path.read_bytes()).hexdigest()] for path in _own_code_files()
            ],
            "packages": [*_package_digests()],
            "process": _process_properties(),
            "machine": [boot_id(), *os.uname()],
            "file system": nearest_existing_path(run_directory(run).parent).stat().st_dev,
            "weights": [*_initial_weights(run)],
        }
    except (OSError, UnicodeError):
        return {}
    return {name: sha256(value) for name, value in inputs.items()}


def compared_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables, except variables that only describe the terminal or the batch job."""
    return {
        name: value
        for name, value in variables.items()
        if name not in TERMINAL_AND_JOB and not name.startswith(TERMINAL_AND_JOB_PREFIXES)
    }


def _own_code_files() -> Iterator[Path]:
    """Yield the project's Python files; git does not track the files of an installed copy."""
    for package in OWN_MODULES:
        yield from sorted((PROJECT_ROOT / package).rglob("*.py"))


def _package_digests() -> Iterator[Any]:
    """Yield a digest of each distribution's metadata, which contains the digests of its installed files.

    For an editable installation, also yield the identities of its files. The metadata is not parsed, because
    parsing takes five times as long as reading.
    """
    for each in metadata.distributions():
        texts = "\0".join(each.read_text(name) or "" for name in INSTALLED)
        yield hashlib.sha256(texts.encode()).hexdigest()
        folder = _editable_folder(each)
        if folder is not None and each.name != PROJECT:
            yield [*_file_identities(folder)]


def _editable_folder(distribution: metadata.Distribution) -> Path | None:
    try:
        origin = loads(distribution.read_text(ORIGIN) or "{}")
        is_editable, url = origin["dir_info"]["editable"], origin["url"]
    except (ValueError, LookupError, TypeError):
        return None
    return Path(unquote(urlparse(url).path)) if is_editable else None


def _process_properties() -> list[Any]:
    """Return inherited process properties besides variables: interpreter, user, folder, CPUs, limits."""
    limits = [resource.getrlimit(getattr(resource, name)) for name in LIMITS]
    group = [
        (CGROUP / name).read_text(encoding="ascii") for name in CGROUP_LIMITS if (CGROUP / name).is_file()
    ]
    who = [os.path.realpath(sys.executable), sys.prefix, sys.version, os.geteuid(), os.getcwd()]
    return [*who, len(os.sched_getaffinity(0)), limits, group]


def _initial_weights(run: ResolvedRun) -> Iterator[Any]:
    """Yield each checkpoint that the run starts from, with the identities of its files."""
    for place in (initial_weights(run.config), run.config.trainer.continue_from):
        if place is not None:
            yield place, [*_file_identities(Path(os.path.expanduser(place)))]


def _file_identities(root: Path) -> Iterator[Any]:
    """Yield path, inode, size and times of each file, and the targets of links, in the order of paths.

    Every edit changes ctime, which programs cannot set.
    """
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if path.is_symlink():
            yield str(path), os.readlink(path)
        if path.is_file() and "__pycache__" not in path.parts:
            status = path.stat()
            times = status.st_mtime_ns, status.st_ctime_ns
            yield str(path), status.st_dev, status.st_ino, status.st_size, *times
