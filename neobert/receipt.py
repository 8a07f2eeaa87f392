"""The receipt: what was checked, for which config, and until when. Training starts from nothing else.

Light on purpose: the launcher writes it and the trainer reads it, so it imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from neobert.errors import ProjectError

SCHEMA_VERSION = 1
FILE_NAME = "receipt.json"
CODE = "RCP001"
CLOCK_SKEW = timedelta(minutes=5)  # hosts that share a run directory agree to within this
HINT = "run `neobert-launch preflight` again for this config, or start with `neobert-launch train`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a preflight found.

    Attributes:
        config_digest: SHA-256 of the canonical resolved config.
        code_version: version of the project, with the state of the working tree where it is known.
        created_utc: ISO 8601 time in UTC; so is `expires_utc`, from which on the receipt is stale.
        verdict: `pass`, `fail` or `unknown`.
        levels: levels that were judged.
        checks: one mapping a check, as in the report.
        waivers: one mapping a waiver that was honoured.
        versions: versions of the packages that matter.
    """

    schema_version: int = SCHEMA_VERSION
    config_digest: str
    profile: str
    code_version: str
    created_utc: str
    expires_utc: str
    verdict: str
    levels: tuple[str, ...]
    checks: tuple[Mapping[str, Any], ...]
    waivers: tuple[Mapping[str, Any], ...]
    hostname: str
    versions: Mapping[str, str]


def write_receipt(receipt: Receipt, path: Path) -> None:
    """Write the receipt as JSON; a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(receipt), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)


def read_receipt(path: Path) -> Receipt:
    """Read a receipt; raises `ProjectError` RCP001 where it is missing or is no receipt."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return _from_json(content)
    except FileNotFoundError:
        raise _refusal("there is no receipt, so nothing says that this run was checked", path) from None
    except (OSError, ValueError, TypeError) as error:
        raise _refusal(f"the receipt cannot be read: {error}", path) from error


def explain_mismatch(receipt: Receipt, config_digest: str, now: datetime) -> tuple[str, ...]:
    """Say in sentences why the receipt does not cover this config at this time; empty where it does."""
    created, expires = receipt.created_utc, receipt.expires_utc
    shown = now.isoformat(timespec="seconds")
    issued_for, wanted = receipt.config_digest[:12], config_digest[:12]
    findings = (
        (
            receipt.config_digest != config_digest,
            f"it was issued for config {issued_for}, this run's config is {wanted}",
        ),
        (receipt.verdict != "pass", f"its verdict is {receipt.verdict}, not pass"),
        (now >= datetime.fromisoformat(expires), f"it is stale: it expired at {expires}, it is now {shown}"),
        (
            now + CLOCK_SKEW < datetime.fromisoformat(created),
            f"it is dated {created}, in the future: a clock is wrong",
        ),
    )
    return tuple(sentence for is_wrong, sentence in findings if is_wrong)


def require_receipt(path: Path, config_digest: str, now: datetime) -> Receipt:
    """Return the receipt where it covers the run; raises `ProjectError` RCP001 naming what differs."""
    receipt = read_receipt(path)
    reasons = explain_mismatch(receipt, config_digest, now)
    if reasons:
        raise _refusal(f"the receipt does not cover this run: {'; '.join(reasons)}", path)
    return receipt


def _from_json(content: Any) -> Receipt:
    if not isinstance(content, dict):
        raise TypeError("it is not a JSON object")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {content.get('schema_version')!r}, not {SCHEMA_VERSION}")
    known = {field.name for field in fields(Receipt)}
    if set(content) != known:
        raise ValueError(f"fields that are missing or unknown: {', '.join(sorted(known ^ set(content)))}")
    for name in ("levels", "checks", "waivers"):
        content[name] = tuple(content[name])
    for name in ("created_utc", "expires_utc"):
        if datetime.fromisoformat(content[name]).tzinfo is None:
            raise ValueError(f"{name} has no time zone")
    return Receipt(**content)


def _refusal(message: str, path: Path) -> ProjectError:
    return ProjectError(code=CODE, message=message, hint=HINT, place=str(path))


def utc_now() -> datetime:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
