"""Working tree of the code, or of the folder in which the run is launched."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.probes.child import run_command
from launcher.probes.probe import IncompleteError, Subject
from neobert.atomic_write import write_atomically
from validators.facts_host import GitFacts

TIMEOUT_S = 8.0
MAX_DIFF_BYTES = 64 * 2**20
# A person's settings and variables may run programs, color a patch, shorten it or name another repository:
# the digest of a difference has to depend on the difference alone.
SETTINGS = (
    "color.ui=false", "core.checkStat=default", "core.fsmonitor=false", f"core.hooksPath={os.devnull}",
    "core.quotePath=true", "core.trustctime=true", "diff.autoRefreshIndex=true",
    "diff.suppressBlankEmpty=false",
)  # fmt: skip
STATUS = ("status", "--porcelain", "--untracked-files=normal")
DIFF = (
    "diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/",
    "--no-relative", "--unified=3", "--inter-hunk-context=0", "--diff-algorithm=myers", "--indent-heuristic",
    "--find-renames", "--submodule=short", "--ignore-submodules=untracked", f"-O{os.devnull}",
)  # fmt: skip
# Where to find git, repositories, and the settings that call a directory of another user safe.
KEPT_VARIABLES = ("GIT_CEILING_DIRECTORIES", "GIT_CONFIG", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
UNTRACKED = b"# untracked: "
"""Prefix of the lines that list untracked files in the saved diff. Lines of a patch never begin with it."""
NO_REPOSITORY = GitFacts(is_repository=False, sha="", is_dirty=False, diff_sha256="", diff_saved=False)


def probe_git(subject: Subject) -> GitFacts:
    """Return the commit and state of the working tree; save its changes to `subject.diff_file` if set."""
    tree = _working_tree(subject)
    if tree is None:
        return NO_REPOSITORY
    status = _git(tree, *STATUS)
    sha = _git(tree, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).decode().strip()
    if not status.strip():
        return GitFacts(is_repository=True, sha=sha, is_dirty=False, diff_sha256="", diff_saved=False)
    diff = _uncommitted_diff(tree, sha)
    return GitFacts(
        is_repository=True,
        sha=sha,
        is_dirty=True,
        diff_sha256=hashlib.sha256(diff).hexdigest(),
        diff_saved=_save_diff(diff, subject.diff_file),
    )


def _working_tree(subject: Subject) -> Path | None:
    if _is_own_code_tracked(subject.code):
        return subject.code
    return subject.folder if _is_repository(subject.folder) else None


def _is_own_code_tracked(code: Path) -> bool:
    """Return whether git tracks this project's code, unlike an installation inside another repository."""
    return _is_repository(code) and bool(_git(code, "ls-files", "neobert/__init__.py").strip())


def _uncommitted_diff(tree: Path, sha: str) -> bytes:
    """Return the changes as a patch with untracked Python files; other untracked files are only listed."""
    commit = [sha] if sha else []
    names = _git(tree, "ls-files", "--others", "--exclude-standard", ":/").splitlines()
    sources = [name for name in names if name.endswith((b".py", b'.py"'))]
    patch = _diff_with_new_files(tree, sources, *commit) if sources else _git(tree, *DIFF, *commit)
    return patch + b"".join(UNTRACKED + name + b"\n" for name in names if name not in sources)


def _diff_with_new_files(tree: Path, sources: Sequence[bytes], *commit: str) -> bytes:
    """Return the patch of the changes and these new files, without changing the index of the tree."""
    index = tree / os.fsdecode(_git(tree, "rev-parse", "--git-path", "index").rstrip(b"\n"))
    with TemporaryDirectory() as folder:
        copy, names = Path(folder) / "index", Path(folder) / "names"
        if index.exists():
            shutil.copy2(index, copy)  # with its mtime, on which git's detection of changes depends
        names.write_bytes(b"\n".join(sources))
        literally = ("--literal-pathspecs", "add", "--intent-to-add", f"--pathspec-from-file={names}")
        _git(tree, *literally, index=copy)
        return _git(tree, *DIFF, *commit, index=copy)


def _save_diff(diff: bytes, target: Path | None) -> bool:
    if target is None or len(diff) > MAX_DIFF_BYTES:
        return False
    write_atomically(target, diff)
    return True


def _is_repository(folder: Path) -> bool:
    answer = _run_git(folder, "rev-parse", "--is-inside-work-tree")
    if answer.returncode and b"not a git repository" not in answer.stderr:
        raise IncompleteError(answer.stderr.decode(errors="replace").strip())
    return answer.stdout.strip() == b"true"


def _git(folder: Path, *arguments: str, may_fail: bool = False, index: Path | None = None) -> bytes:
    answer = _run_git(folder, *arguments, index=index)
    if answer.returncode and not may_fail:
        raise IncompleteError(answer.stderr.decode(errors="replace").strip())
    return answer.stdout


def _run_git(folder: Path, *arguments: str, index: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    # Take no lock, because another git may be running; `_is_repository` parses an untranslated message.
    environment = {name: value for name, value in os.environ.items() if _is_passed_to_git(name)}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    return run_command(
        ["git", "--no-pager", *settings, "-C", str(folder), *arguments], TIMEOUT_S, environment
    )


def _is_passed_to_git(variable: str) -> bool:
    return not variable.startswith("GIT_") or variable.startswith(KEPT_VARIABLES)
