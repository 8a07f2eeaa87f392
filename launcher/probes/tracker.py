"""Whether the experiment tracker can be used."""

from __future__ import annotations

import netrc
import os
from pathlib import Path

from launcher.probes.probe import Subject
from launcher.probes.software import installed_versions
from validators.facts import TrackerFacts

HOST = "api.wandb.ai"


def probe_tracker(subject: Subject) -> TrackerFacts:
    """Look for the package, the mode and a login. The tracker is not imported and nothing is sent."""
    offline = subject.config.wandb.mode == "offline" or os.environ.get("WANDB_MODE") in (
        "offline",
        "disabled",
    )
    return TrackerFacts(
        is_installed=bool(installed_versions(("wandb",))),
        is_offline=offline,
        has_credentials=bool(os.environ.get("WANDB_API_KEY")) or _is_logged_in(Path.home() / ".netrc"),
    )


def _is_logged_in(login_file: Path) -> bool:
    try:
        return HOST in netrc.netrc(str(login_file)).hosts
    except (OSError, netrc.NetrcParseError):
        return False
