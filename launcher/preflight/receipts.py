"""Result of a preflight, and its receipt: creation, reading and validity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from launcher.preflight.reused_checks import read_checks
from launcher.report.report import Report
from neobert import __version__
from neobert.config import to_dict
from neobert.config.canonical import sha256
from neobert.config.schema import Waiver
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plan import Measured, Plan
from neobert.receipt import (
    CODE,
    Receipt,
    VerifiedStart,
    explain_changes,
    explain_mismatch,
    read_receipt,
    utc_now,
)
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_host import ResumeFacts
from validators.facts_io import parse_record
from validators.finding import Level
from validators.waivers import SHORTEST_REASON, has_reason


def make_receipt(examination: Examination) -> Receipt:
    """Return the receipt of a preflight: what was checked, on which machine, until when it is valid."""
    run, facts, now = examination.run, examination.facts, utc_now()
    report = examination.report.as_json()
    waived = {finding["code"] for finding in report["findings"] if finding["waived"]}
    return Receipt(
        config_digest=run.digest,
        profile=examination.report.profile,
        code_version=code_version(facts),
        created_utc=now.isoformat(),
        expires_utc=(now + timedelta(hours=run.config.guard.receipt_ttl_hours)).isoformat(),
        verdict=examination.report.verdict,
        levels=tuple(str(level) for level in examination.levels),
        checks=tuple(report["checks"]),
        waivers=tuple(
            {name: str(value) for name, value in asdict(waiver).items()}
            for waiver in run.config.waivers
            if _is_applied(waiver, waived, report)
        ),
        hostname=facts.host.hostname if facts.host else "",
        unguarded=examination.unguarded,
        measured=asdict(examination.measured) if examination.measured else {},
        start=_verified_start(facts.resume),
        text=facts.prepared.fingerprint if facts.prepared else "",
        measured_utc=examination.reused_utc,
        **_bound_values(run, facts),
    )


def _verified_start(resume: ResumeFacts | None) -> VerifiedStart | None:
    """Return the checkpoint to start from; step 0 for a fresh start, None if it was not verified."""
    if resume is None:
        return None
    if resume.is_verified:
        return VerifiedStart(resume.step, str(Path(resume.target).absolute()))
    return None if resume.target else VerifiedStart(0, "")


def _bound_values(run: ResolvedRun, facts: Facts) -> dict[str, Any]:
    """Return the values that invalidate a receipt when they change."""
    gpus = (facts.gpus or ())[: run.config.distributed.nproc_per_node]
    return {
        "config": to_dict(run.config),
        "code_diff_sha256": facts.git.diff_sha256 if facts.git else "",
        "lock_sha256": sha256(facts.software.pinned) if facts.software else "",
        "python": facts.software.python if facts.software else "",
        "versions": facts.software.packages if facts.software else {},
        "gpu_uuids": tuple(gpu.uuid for gpu in gpus),
        "driver_version": gpus[0].driver_version if gpus else "",
    }


def code_version(facts: Facts) -> str:
    """Return the project's version, with the commit of its code or of the working directory if known."""
    if facts.git is None or not facts.git.sha:
        return __version__
    return f"{__version__}+{facts.git.sha[:12]}{'.dirty' if facts.git.is_dirty else ''}"


def _is_applied(waiver: Waiver, waived: set[str], report: Mapping[str, Any]) -> bool:
    accepted = {check["id"] for check in report["checks"] if check["message"].startswith("waived: ")}
    return waiver.code in waived | accepted


def read_receipt_for_run(path: Path, run: ResolvedRun) -> Receipt:
    """Read the receipt given by --receipt.

    Raises ProjectError RCP001 if the receipt is damaged, of an unguarded run or of another config, or if the
    checks that it reuses have expired.
    """
    receipt = read_receipt(path / "receipt.json" if path.is_dir() else path)
    require_readable(receipt, path)
    if receipt.unguarded:
        raise _invalid_receipt_error(("it was issued for an unguarded run",), path)
    if is_reuse_expired(receipt, utc_now()):
        repeated = f"its checks of {receipt.measured_utc} have expired"
        raise _invalid_receipt_error((repeated,), path)
    if receipt.config_digest == run.digest:
        return receipt
    changes = explain_changes(receipt, replace(receipt, config=to_dict(run.config)))
    raise _invalid_receipt_error(changes or explain_mismatch(receipt, run.digest, utc_now())[:1], path)


def require_readable(receipt: Receipt, path: Path) -> None:
    """Raise ProjectError RCP001 if the checks or the measurements of a receipt are damaged."""
    try:
        read_checks(receipt)
        read_measurements(receipt)
    except (KeyError, TypeError, ValueError, ProjectError) as error:
        raise _invalid_receipt_error((f"its checks cannot be read: {error!r}",), path) from None


def require_valid(receipt: Receipt, run: ResolvedRun, path: Path) -> None:
    """Raise ProjectError RCP001 if a receipt has expired, did not pass or is of another config."""
    if reasons := explain_mismatch(receipt, run.digest, utc_now()):
        raise _invalid_receipt_error(reasons, path)


def require_unchanged(receipt: Receipt, examination: Examination, path: Path) -> None:
    """Raise ProjectError RCP001 if a receipt is not valid now, or if run or machine have changed."""
    present = make_receipt(examination)
    reasons = explain_mismatch(receipt, examination.run.digest, utc_now())
    changes = explain_changes(receipt, present)
    if reasons or changes:
        raise _invalid_receipt_error((*reasons, *changes), path)


def is_unchanged(receipt: Receipt, run: ResolvedRun, facts: Facts) -> bool:
    """Return whether a receipt is valid now, and config, code, versions and devices are the same as in it."""
    present = replace(receipt, code_version=code_version(facts), **_bound_values(run, facts))
    return not explain_mismatch(receipt, run.digest, utc_now()) and not explain_changes(receipt, present)


def is_reuse_expired(receipt: Receipt, now: datetime) -> bool:
    """Return whether a receipt's reused results are older than its validity period; False if it has none."""
    if not receipt.measured_utc:
        return False
    created, expires = map(datetime.fromisoformat, (receipt.created_utc, receipt.expires_utc))
    return now >= datetime.fromisoformat(receipt.measured_utc) + (expires - created)


def read_measurements(receipt: Receipt | None) -> Measured | None:
    """Return the rehearsal measurements in a receipt, or None if it has none.

    Raises ProjectError if they cannot be read.
    """
    return parse_record(Measured, receipt.measured) if receipt and receipt.measured else None


def _invalid_receipt_error(reasons: Iterable[str], path: Path) -> ProjectError:
    return ProjectError(
        code=CODE,
        message=f"the receipt does not cover this run: {'; '.join(reasons)}",
        hint="run `neobert-launch preflight` again for this run and pass the new receipt, or omit --receipt",
        place=str(path),
    )


def require_reason(reason: str | None) -> str:
    """Return the reason for --unguarded; empty if it is not set. Raises ProjectError if it is too short."""
    if reason is None:
        return ""
    if not has_reason(reason):
        of_length = f" of at least {SHORTEST_REASON} characters" if reason.strip() else ""
        raise ProjectError(
            code="unguarded-without-reason",
            message=f"--unguarded launches even if checks fail, so it needs a reason{of_length}",
            hint="state who accepts the risk and why; REASON is kept in manifest, receipt and heartbeats",
            place="--unguarded",
            exit_code=EXIT_USAGE,
        )
    return reason.strip()


@dataclass(frozen=True, slots=True)
class Examination:
    """Run, plan, facts and report of a preflight.

    Attributes:
        plan: uses the measurements of a rehearsal, if there is one; `predicted` does not.
        unguarded: reason for launching even if checks fail; empty for a guarded run.
        measured: measurements of a rehearsal in this preflight or an earlier one, or None.
        reused: codes of the checks whose results come from an earlier receipt.
        reused_utc: time of those results; empty if none were reused.
    """

    run: ResolvedRun
    plan: Plan
    facts: Facts
    levels: tuple[Level, ...]
    report: Report
    unguarded: str
    predicted: Plan
    measured: Measured | None
    reused: tuple[str, ...] = ()
    reused_utc: str = ""
