"""Trackers: packages, folders, login and server of Weights & Biases."""

from __future__ import annotations

import netrc
import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from launcher.probes.probe import Subject, nearest_existing_path
from neobert.config import to_dict
from neobert.trackers.table import TRACKERS, requested_trackers
from neobert.trackers.wandb import WANDB, wandb_mode
from validators.facts_host import TrackerFacts

SERVER = "https://api.wandb.ai"
PORTS = {"http": 80, "https": 443}
TIMEOUT_S = 5.0


def probe_tracker(subject: Subject) -> TrackerFacts:
    """Look up packages, folders, mode, login and server. Nothing is imported, created or sent."""
    server = os.environ.get("WANDB_BASE_URL") or SERVER
    config = subject.config
    offline = wandb_mode(config.wandb.mode) in ("offline", "disabled")
    is_online = (
        WANDB.name in requested_trackers(config.trackers, with_wandb=config.wandb.enabled) and not offline
    )
    return TrackerFacts(
        is_installed=WANDB.is_installed,
        is_offline=offline,
        has_credentials=bool(os.environ.get("WANDB_API_KEY")) or _is_logged_in(server),
        is_reachable=_accepts_connections(server) if is_online else None,
        packages={name: tracker.is_installed for name, tracker in TRACKERS.items()},
        unwritable=_unwritable_folders(subject),
    )


def _unwritable_folders(subject: Subject) -> dict[str, str]:
    settings = to_dict(subject.config)
    folders = {
        name: nearest_existing_path(each.folder(subject.output_dir, settings))
        for name, each in TRACKERS.items()
    }
    return {
        name: str(folder)
        for name, folder in folders.items()
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK)
    }


def _is_logged_in(server: str) -> bool:
    login_file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        return urlsplit(server).hostname in netrc.netrc(login_file).hosts
    except (OSError, netrc.NetrcParseError):
        return False


def _accepts_connections(server: str) -> bool | None:
    """Return whether a server accepts connections, or None if a proxy is set for its URL scheme."""
    place = urlsplit(server)
    if place.scheme in getproxies():
        return None
    try:
        socket.create_connection((place.hostname or "", place.port or PORTS[place.scheme]), TIMEOUT_S).close()
    except (OSError, ValueError, KeyError):
        return False
    return True
