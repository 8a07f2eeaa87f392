"""Receipt of a preflight: checks, config and expiry. Training does not start without a valid receipt.

The launcher writes the receipt and the trainer reads it, so this module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from neobert.atomic_write import write_atomically
from neobert.config.canonical import flatten, sha256
from neobert.errors import ProjectError
from neobert.plugins.changes import file_digests
from neobert.runfiles.typed_json import parse_as

SCHEMA_VERSION = 3
FILE_NAME = "receipt.json"
CODE = "RCP001"
DIGEST_LENGTH = 64
CLOCK_SKEW = timedelta(minutes=5)  # hosts that share a run directory agree to within this
SEAL = "sha256"
PLUGIN_CODE = "plugins.code"
HINT = "run `neobert-launch preflight` again for this config, or start with `neobert-launch train`"


@dataclass(frozen=True, slots=True)
class VerifiedStart:
    """Checkpoint from which the run starts, as verified by preflight.

    Attributes:
        step: step of the checkpoint; 0 for a start without a checkpoint.
        folder: absolute path of the checkpoint; empty for a start without a checkpoint.
    """

    step: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Result of a preflight.

    Attributes:
        config_digest: SHA-256 of the canonical resolved config.
        code_version: version of the project, with the state of the working tree if known.
        created_utc, expires_utc: ISO 8601 times in UTC; the receipt is invalid from `expires_utc` on.
        verdict: `pass`, `fail` or `unknown`.
        levels: check levels that preflight ran.
        checks: one mapping per check, as in the JSON report.
        waivers: one mapping per applied waiver.
        versions: versions of the packages that affect a run.
        config: the resolved config, so that messages can name the changed keys.
        code_diff_sha256: SHA-256 of the uncommitted changes; empty if there are none.
        lock_sha256: SHA-256 of the package versions that the project's constraints file pins.
        gpu_uuids: UUIDs of the run's GPUs on this node, in device order.
        unguarded: user's reason to launch even if checks fail; empty for a guarded run.
        measured: step time (s) and memory (MiB) measured by a rehearsal, and its source; empty if none ran.
        start: checkpoint from which the first session must start; None if preflight verified none.
        text: fingerprint of the prepared text; empty if preflight did not inspect it.
        measured_utc: issue time of the earlier receipt whose results are reused; empty if none is reused.
        inputs: digests of further inputs of the rehearsal; only in a receipt kept for later launches.
        issued_boot_s: issue time in seconds since boot; only in a receipt kept for later launches.
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
    config: Mapping[str, Any] = field(default_factory=dict)
    code_diff_sha256: str = ""
    lock_sha256: str = ""
    python: str = ""
    gpu_uuids: tuple[str, ...] = ()
    driver_version: str = ""
    unguarded: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    start: VerifiedStart | None = None
    text: str = ""
    measured_utc: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    issued_boot_s: float = 0.0


def write_receipt(receipt: Receipt, path: Path) -> None:
    """Write the receipt as JSON, atomically."""
    content = json.dumps(with_digest(asdict(receipt)), indent=2, sort_keys=True)
    write_atomically(path, content.encode() + b"\n")


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its SHA-256 added, which detects edits but, being unkeyed, not forgery."""
    plain = {name: value for name, value in content.items() if name != SEAL}
    return plain | {SEAL: sha256(plain)}


def read_receipt(path: Path) -> Receipt:
    """Read a receipt. Raises `ProjectError` RCP001 if the file is missing or its content is invalid."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return _parse_receipt(content)
    except FileNotFoundError:
        raise _receipt_error("there is no receipt, so this run was not checked", path) from None
    except (OSError, ValueError, TypeError) as error:
        raise _receipt_error(f"the receipt cannot be read: {error}", path) from error


def explain_mismatch(receipt: Receipt, config_digest: str, now: datetime) -> tuple[str, ...]:
    """Return the reasons why the receipt does not cover this config at the time `now`; empty if it does."""
    created, expires = receipt.created_utc, receipt.expires_utc
    shown = now.isoformat(timespec="seconds")
    issued_for, wanted = receipt.config_digest[:12], config_digest[:12]
    findings = (
        (
            receipt.config_digest != config_digest,
            f"it was issued for config {issued_for}, but this run's config is {wanted}",
        ),
        (
            receipt.verdict != "pass" and not receipt.unguarded,
            f"its verdict is {receipt.verdict}, not pass",
        ),
        (now >= datetime.fromisoformat(expires), f"it expired at {expires} (now: {shown})"),
        (
            now + CLOCK_SKEW < datetime.fromisoformat(created),
            f"it is dated {created}, in the future: a clock is wrong",
        ),
    )
    return tuple(sentence for is_wrong, sentence in findings if is_wrong)


def explain_changes(receipt: Receipt, present: Receipt) -> tuple[str, ...]:
    """Return one sentence per change from `receipt` to `present`, a receipt of the current state."""
    return (
        *_changed_keys(
            _keys_by_plugin_file(flatten(receipt.config)), _keys_by_plugin_file(flatten(present.config))
        ),
        *_describe_change("the code", receipt.code_version, present.code_version),
        *_describe_change(
            "the digest of uncommitted changes", receipt.code_diff_sha256, present.code_diff_sha256
        ),
        *_describe_change("the digest of pinned versions", receipt.lock_sha256, present.lock_sha256),
        *_describe_change("Python", receipt.python, present.python),
        *_changed_keys(receipt.versions, present.versions),
        *_describe_change("the GPU driver", receipt.driver_version, present.driver_version),
        *_describe_change("the set of GPUs", ", ".join(receipt.gpu_uuids), ", ".join(present.gpu_uuids)),
    )


def _keys_by_plugin_file(keys: dict[str, Any]) -> dict[str, Any]:
    """Return flat keys with an entry for each file of plug-ins in place of their list."""
    code = keys.pop(PLUGIN_CODE, ())
    return keys | {f"{PLUGIN_CODE} {name}": value for name, value in file_digests(code).items()}


def _changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*before, *now}):
        yield from _describe_change(key, before.get(key, "missing"), now.get(key, "missing"))


def _describe_change(subject: str, before: Any, now: Any) -> Iterator[str]:
    if before != now:
        yield f"{subject} was {_format_value(before)} and is {_format_value(now)}"


def _format_value(value: Any) -> str:
    """Format a value for a message: digests are shortened, empty values are written as "none"."""
    text = "none" if value in ("", None) else str(value)
    return text[:12] if len(text) == DIGEST_LENGTH else text


def require_receipt(path: Path, config_digest: str, now: datetime) -> Receipt:
    """Return the receipt if it covers the config at the time `now`.

    Raises `ProjectError` RCP001 with all reasons if it does not.
    """
    receipt = read_receipt(path)
    reasons = explain_mismatch(receipt, config_digest, now)
    if reasons:
        raise _receipt_error(f"the receipt does not cover this run: {'; '.join(reasons)}", path)
    return receipt


def _parse_receipt(content: Any) -> Receipt:
    if not isinstance(content, dict):
        raise TypeError("it is not a JSON object")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {content.get('schema_version')!r}, not {SCHEMA_VERSION}")
    if content != with_digest(content):
        raise ValueError("it was edited after it was issued: its digest does not match")
    del content[SEAL]
    receipt = parse_as(Receipt, content)
    for name in ("created_utc", "expires_utc", *(("measured_utc",) if receipt.measured_utc else ())):
        if datetime.fromisoformat(getattr(receipt, name)).tzinfo is None:
            raise ValueError(f"{name} has no time zone")
    return receipt


def _receipt_error(message: str, path: Path) -> ProjectError:
    return ProjectError(code=CODE, message=message, hint=HINT, place=str(path))


def utc_now() -> datetime:
    """Return the current UTC time, truncated to seconds."""
    return datetime.now(UTC).replace(microsecond=0)
