"""Weights & Biases, where it is asked for. It may be slow, down or gone: the run goes on without it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from neobert.config.schema import WandbConfig
from neobert.errors import ProjectError
from neobert.installing import INSTALL

log = logging.getLogger(__name__)

HINT = f"{INSTALL['wandb']}, or set wandb.enabled: false; metrics.jsonl is written either way"


class Session(Protocol):
    """What is used of a tracker's run."""

    def log(self, data: dict[str, Any], step: int) -> None:
        """Report values at a step."""

    def finish(self) -> None:
        """End the session."""


class Tracker:
    """Reports lines until the first failure, which it says once."""

    def __init__(self, session: Session | None) -> None:
        self._session = session

    def log(self, row: Mapping[str, Any]) -> None:
        """Report a line of metrics."""
        values = {name: value for name, value in row.items() if value is not None and name != "step"}
        self._attempt("log", values, step=row["step"])

    def close(self) -> None:
        """End the session."""
        self._attempt("finish")
        self._session = None

    def _attempt(self, method: str, *args: Any, **kwargs: Any) -> None:
        if self._session is None:
            return
        try:
            getattr(self._session, method)(*args, **kwargs)
        except Exception as error:  # whatever a foreign service does, it stops no run
            self._session = None
            log.warning("the tracker failed (%s) and is left out from here on; metrics.jsonl goes on", error)


def mode_of(config: WandbConfig) -> str:
    """Return the mode that counts: given to wandb as an argument, the config's would beat the variable."""
    return os.environ.get("WANDB_MODE") or config.mode


def open_tracker(config: WandbConfig, run_dir: Path, settings: Mapping[str, Any]) -> Tracker | None:
    """Start or continue the run's session; None where it is not enabled.

    Raises `ProjectError` TRK001 where the package is missing: that is known before the first step.
    """
    if not config.enabled:
        return None
    try:
        import wandb
    except ImportError as error:
        message = "wandb.enabled is true, and the package wandb is not installed"
        raise ProjectError("TRK001", message, HINT, "wandb.enabled") from error
    identity = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]
    try:
        session = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name or run_dir.name,
            mode=mode_of(config),
            id=identity,
            resume="allow",
            dir=str(run_dir),
            config=dict(settings),
        )
    except Exception as error:  # the same: no service, no tracker, but a run
        log.warning("the tracker cannot be reached (%s); the run goes on without it", error)
        return None
    return Tracker(session)
