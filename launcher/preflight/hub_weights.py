"""Download of model repositories from the Hugging Face Hub: settings, safetensors weights, tokenizer.

Nothing of a repository is executed, and no other file of it is downloaded. The library's cache holds the
files: a file that is complete is not downloaded again, and a commit that is complete needs no connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from launcher.terminal import console
from neobert.config.schema import RunConfig
from neobert.data.sources.retries import is_transient
from neobert.errors import EXIT_USAGE, ProjectError, first_line
from neobert.families.table import named_weights
from neobert.hub_names import cached_commit, hub_cache, is_commit, is_pinned, snapshot_folder
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.model_files import TOKENIZER_FILES
from neobert.runfiles.run_dir import CONFIG
from neobert.runfiles.weights_header import INDEX, PICKLES, WEIGHTS, weight_files

CODE = "hub"
REVISION = re.compile(r"\w[\w./-]*")
SAFETENSORS = ".safetensors"
OFFLINE = "HF_HUB_OFFLINE"
TRUE = ("1", "true", "yes", "on")
TIMEOUT_S = 10.0
OTHER_PLACE = "pass a local folder, which may be a copy from a machine with a connection"


class Snapshot(NamedTuple):
    """Cached files of a Hub repository at one commit."""

    commit: str
    folder: Path


def download(name: str, revision: str | None) -> Snapshot:
    """Download a model repository at a revision (default: main), or use its copy in the cache.

    Without a connection, a branch is the commit that was last downloaded. Raises `ProjectError` for a
    repository that does not exist, has no safetensors, or is not in the cache when there is no connection.
    """
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        message = f"{printable(revision)} is not a revision"
        hint = "pass a branch, a tag or a commit as NAME@REVISION"
        raise ProjectError(CODE, message, hint, name, EXIT_USAGE)
    commit = cached_commit(name, revision)
    if revision is not None and is_commit(revision) and _is_complete(snapshot_folder(name, commit)):
        return Snapshot(commit, snapshot_folder(name, commit))
    info = _look_up_revision(name, revision)
    if info is None:
        return _cached_snapshot(name, revision, commit)
    commit, files = (
        str(info.sha),
        _files_to_download(name, [str(each.rfilename) for each in info.siblings or ()]),
    )
    if not is_commit(commit):
        raise ProjectError(CODE, "the Hub returned no commit for this revision", "try again later", name)
    folder = snapshot_folder(name, commit)
    if not _is_complete(folder):
        missing = [each for each in files if not (folder / each).is_file()]
        console.log(printable(f"downloading {name}@{commit[:12]}: {counted(len(missing), 'file')}"))
    with _convert_hub_errors(name, revision):
        for file in files:
            _download_file(name, commit, file)
    _record_branch_commit(name, revision, commit)
    return Snapshot(commit, folder)


def require_downloaded(config: RunConfig) -> None:
    """Download weights and tokenizer of a run that starts from a commit on the Hub, unless they are cached.

    Raises `ProjectError` if they are neither in the cache nor on the Hub.
    """
    name, revision = named_weights(config)
    if is_pinned(name, revision):
        download(name, revision)


def newest_commit(name: str, revision: str | None) -> str:
    """Return the commit of a revision on the Hub; empty without a connection, or if the Hub refuses."""
    try:
        info = _look_up_revision(name, revision)
    except ProjectError:
        return ""
    return "" if info is None else str(info.sha)


def _look_up_revision(name: str, revision: str | None) -> Any:
    """Return the Hub's record of a revision, or None in offline mode or without a connection.

    Raises `ProjectError` if the Hub refuses the request.
    """
    if os.environ.get(OFFLINE, "").lower() in TRUE:
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    with _convert_hub_errors(name, revision):
        try:
            return HfApi(endpoint=_hub_endpoint()).model_info(name, revision=revision, timeout=TIMEOUT_S)
        except HfHubHTTPError:
            raise
        except Exception as error:  # the library's HTTP client has errors of its own
            if is_transient(error):
                return None
            raise


def _hub_endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _files_to_download(name: str, offered: Collection[str]) -> list[str]:
    """Return the files to download. Raises `ProjectError` if settings or safetensors weights are missing."""
    files = {file for file in offered if PurePath(file).name == file}
    if CONFIG not in files:
        hint = "pass a repository of a transformers model"
        raise ProjectError(CODE, f"the repository has no {CONFIG}", hint, name, EXIT_USAGE)
    weights = {WEIGHTS} & files or {INDEX, *(each for each in files if each.endswith(SAFETENSORS))} & files
    if not any(each.endswith(SAFETENSORS) for each in weights):
        raise _no_safetensors_error(name, files)
    # Weights last: a snapshot that has them has all files.
    return [CONFIG, *sorted(files & {*TOKENIZER_FILES}), *sorted(weights)]


def _no_safetensors_error(name: str, files: Collection[str]) -> ProjectError:
    pickles = sorted(each for each in files if each.endswith(PICKLES))
    message = f"the repository has no {WEIGHTS}"
    hint = "pass a repository with safetensors weights"
    if pickles:
        message = f"the weights are pickles ({printable(listed(pickles, 2))}), which may run code when read"
        hint = (
            "pass a revision with safetensors, often NAME@refs/pr/NUMBER, or convert the weights with "
            "save_pretrained on an isolated machine and pass the new folder"
        )
    return ProjectError(CODE, message, hint, name, EXIT_USAGE)


def _download_file(name: str, commit: str, file: str) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(
        name, file, revision=commit, cache_dir=hub_cache(), endpoint=_hub_endpoint(), etag_timeout=TIMEOUT_S
    )


def _record_branch_commit(name: str, revision: str | None, commit: str) -> None:
    """Record the commit of a branch in the cache, as the library does."""
    if revision is None or not is_commit(revision):
        branch = hub_cache() / f"models--{name.replace('/', '--')}" / "refs" / (revision or "main")
        branch.parent.mkdir(parents=True, exist_ok=True)
        branch.write_text(commit, encoding="ascii")


def _cached_snapshot(name: str, revision: str | None, commit: str) -> Snapshot:
    """Return the copy in the cache. Raises `ProjectError` if it is missing or incomplete."""
    folder = snapshot_folder(name, commit)
    if is_commit(commit) and _is_complete(folder):
        console.log(printable(f"no connection to the Hub: {name}@{commit[:12]} from the local cache"))
        return Snapshot(commit, folder)
    part = "only partly in the local cache" if folder.is_dir() else "not in the local cache"
    shown = f"revision {printable(revision)} is" if revision else "is"
    message = f"{shown} {part}, and there is no connection to the Hub"
    raise ProjectError(CODE, message, f"connect and run the same command again; or {OTHER_PLACE}", name)


def _is_complete(folder: Path) -> bool:
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    try:
        is_complete = all(file.is_file() for file in weight_files(folder))
        return has_tokenizer and is_complete and (folder / CONFIG).is_file()
    except ProjectError:
        return False


@contextmanager
def _convert_hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Convert errors of huggingface_hub about a repository to `ProjectError`; raise others unchanged."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        hint = "accept the terms on the repository's page, then run `hf auth login`"
        raise ProjectError(CODE, "the repository is gated", hint, name) from error
    except errors.RevisionNotFoundError as error:
        message = f"the Hub has no revision {printable(revision or 'main')} of this repository"
        raise ProjectError(CODE, message, "pass another revision as NAME@REVISION", name) from error
    except errors.RepositoryNotFoundError as error:
        message = "the name is neither a local folder nor a public repository on the Hub"
        hint = "correct the name, or run `hf auth login` for a private repository"
        raise ProjectError(CODE, message, hint, name, EXIT_USAGE) from error
    except errors.HFValidationError as error:
        raise ProjectError(CODE, printable(str(error)), "pass a name of the form OWNER/NAME", name) from error
    except Exception as error:
        if not is_transient(error):
            raise
        message = f"the download failed: {printable(first_line(error))}"
        hint = "run the same command again: complete files are kept"
        raise ProjectError(CODE, message, hint, name) from error
