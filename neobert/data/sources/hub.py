"""The hub from a machine that may not reach it: found out in one attempt, not in the client's dozen."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

CONNECT_TIMEOUT_S = 5.0
PORTS = {"http": 80, "https": 443}


def is_out_of_reach() -> bool:
    """Return whether the Hub refuses connections. Availability behind a proxy is unknown."""
    server = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or server.scheme in getproxies():
        return constants.HF_HUB_OFFLINE
    place = (server.hostname or "", server.port or PORTS.get(server.scheme, 443))
    try:
        socket.create_connection(place, CONNECT_TIMEOUT_S).close()
    except OSError:
        return True
    return False


@contextmanager
def quiet_client() -> Iterator[None]:
    """Leave out what the hub's client says of its attempts: the error behind them says it once."""
    client = logging.getLogger("huggingface_hub")
    level = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
