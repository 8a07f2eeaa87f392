"""Tracker run ID, stored in the run directory, with which a later session continues the same tracker run."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path

from neobert.atomic_write import write_atomically

FILE = "tracker_run_id"
DIGITS = 16
_IDENTITY = re.compile(f"[0-9a-f]{{{DIGITS}}}")


def run_identity(run_dir: Path, first_step: int) -> str:
    """Return the stored ID of a resumed run; create and store a new ID if there is none, or at step 0.

    A run that starts at step 0 always gets a new ID: an earlier run in the same directory logged other values
    for the same steps. The ID does not depend on the path, so a directory can be moved.

    Raises `OSError` if the file cannot be written.
    """
    file = run_dir / FILE
    if first_step:
        with suppress(OSError, ValueError):
            kept = file.read_text(encoding="ascii").strip()
            if _IDENTITY.fullmatch(kept):
                return kept
    identity = secrets.token_hex(DIGITS // 2)
    write_atomically(file, f"{identity}\n".encode())
    return identity
