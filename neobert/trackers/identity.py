"""Identity by which trackers find the run of an earlier session, kept in the run directory."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path

from neobert.atomic_write import write_atomically

FILE = "tracker_run_id"
DIGITS = 16
_IDENTITY = re.compile(f"[0-9a-f]{{{DIGITS}}}")


def identity_of(run_dir: Path, first_step: int) -> str:
    """Return the identity in the run directory, or write a new one.

    A run that starts at step 0 is new at the trackers, too: an earlier run of this path, which may have been
    deleted, has other lines of the same steps. A directory that was moved keeps its identity.

    Raises OSError if the file cannot be written.
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
