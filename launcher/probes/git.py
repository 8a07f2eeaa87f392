"""The working tree that the run starts from."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from launcher.probes.child import run
from launcher.probes.probe import IncompleteError, Subject
from validators.facts import GitFacts

TIMEOUT_S = 8.0
MAX_DIFF_BYTES = 64 * 2**20
NO_REPOSITORY = GitFacts(is_repository=False, sha="", is_dirty=False, diff_sha256="", diff_saved=False)


def probe_git(subject: Subject) -> GitFacts:
    """Read commit and difference; the difference is kept in `subject.diff_file`, where there is one."""
    if not _is_repository(subject.folder):
        return NO_REPOSITORY
    status = _git(subject.folder, "status", "--porcelain")
    sha = _git(subject.folder, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).decode().strip()
    if not status.strip():
        return GitFacts(is_repository=True, sha=sha, is_dirty=False, diff_sha256="", diff_saved=False)
    diff = _difference(subject.folder, sha)
    return GitFacts(
        is_repository=True,
        sha=sha,
        is_dirty=True,
        diff_sha256=hashlib.sha256(diff).hexdigest(),
        diff_saved=_save(diff, subject.diff_file),
    )


def _difference(folder: Path, sha: str) -> bytes:
    """Tracked changes as a patch; files that git does not know are named behind it."""
    patch = _git(folder, "diff", "--binary", *([sha] if sha else []))
    unknown = _git(folder, "ls-files", "--others", "--exclude-standard")
    return patch + b"".join(b"# untracked: " + name + b"\n" for name in unknown.splitlines())


def _save(diff: bytes, target: Path | None) -> bool:
    if target is None or len(diff) > MAX_DIFF_BYTES:
        return False
    target.write_bytes(diff)
    return True


def _is_repository(folder: Path) -> bool:
    answer = _run(folder, "rev-parse", "--is-inside-work-tree")
    if answer.returncode and b"not a git repository" not in answer.stderr:
        raise IncompleteError(answer.stderr.decode(errors="replace").strip())
    return answer.stdout.strip() == b"true"


def _git(folder: Path, *arguments: str, may_fail: bool = False) -> bytes:
    answer = _run(folder, *arguments)
    if answer.returncode and not may_fail:
        raise IncompleteError(answer.stderr.decode(errors="replace").strip())
    return answer.stdout


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # No lock is taken and no message translated: another git may be at work, and one message is read above.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    return run(["git", "-C", str(folder), *arguments], TIMEOUT_S, environment)
