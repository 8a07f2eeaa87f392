"""Whether the experiment tracker can be used."""

from __future__ import annotations

import netrc
import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from launcher.probes.probe import Subject
from launcher.probes.software import installed_versions
from neobert.training.tracker import mode_of
from validators.facts import TrackerFacts

SERVER = "https://api.wandb.ai"
PORTS = {"http": 80, "https": 443}
TIMEOUT_S = 5.0


def probe_tracker(subject: Subject) -> TrackerFacts:
    """Look for the package, the mode, a login and the server. Nothing is imported, and nothing is sent."""
    server = os.environ.get("WANDB_BASE_URL") or SERVER
    offline = mode_of(subject.config.wandb) in ("offline", "disabled")
    is_asked = subject.config.wandb.enabled and not offline
    return TrackerFacts(
        is_installed=bool(installed_versions(("wandb",))),
        is_offline=offline,
        has_credentials=bool(os.environ.get("WANDB_API_KEY")) or _is_logged_in(server),
        is_reachable=_takes_connections(server) if is_asked else None,
    )


def _is_logged_in(server: str) -> bool:
    login_file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        return urlsplit(server).hostname in netrc.netrc(login_file).hosts
    except (OSError, netrc.NetrcParseError):
        return False


def _takes_connections(server: str) -> bool | None:
    """What lies behind a proxy, only the proxy knows."""
    place = urlsplit(server)
    if place.scheme in getproxies():
        return None
    try:
        socket.create_connection((place.hostname or "", place.port or PORTS[place.scheme]), TIMEOUT_S).close()
    except (OSError, ValueError, KeyError):
        return False
    return True
