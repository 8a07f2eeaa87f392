"""Availability of a repository on the Hub: in the local cache, otherwise by one request to the server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from launcher.probes.probe import IncompleteError

Kind = Literal["datasets", "models"]
OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
TRUE = ("1", "true", "yes", "on")
TIMEOUT_S = 5.0


def is_available(kind: Kind, name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the trainer would find it. Raises IncompleteError without an answer."""
    if any(folder.is_dir() for folder in _cached(kind, name, environment)):
        return True
    if any(environment.get(switch, "").lower() in TRUE for switch in OFFLINE_SWITCHES):
        raise IncompleteError(f"{name} is not in the local cache, and this is offline")
    from huggingface_hub.constants import ENDPOINT

    endpoint = environment.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
    return _answers(f"{endpoint}/api/{kind}/{name}", environment.get("HF_TOKEN", ""))


def _cached(kind: Kind, name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    hub = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    yield hub / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    if kind == "datasets":
        prepared = Path(environment.get("HF_DATASETS_CACHE") or home / "datasets")
        yield prepared / name.replace("/", "___")


def _answers(url: str, token: str) -> bool:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {}, method="HEAD")
    try:
        with urlopen(request, timeout=TIMEOUT_S):
            return True
    except HTTPError as error:
        if error.code in (401, 403, 404):
            return False
        raise IncompleteError(f"{url} answered {error.code}") from None
    except (OSError, ValueError) as error:
        raise IncompleteError(f"{url} gave no answer: {getattr(error, 'reason', error)}") from None
