"""Reasons of checks that were not run, as `preflight` prints them."""

import pytest

from launcher.preflight import preflight_view
from validators.finding import CheckResult, Level, Status

IDS = [f"DAT00{number}" for number in range(1, 8)]
REASON = "data preparation failed: there is no such data set"


@pytest.mark.parametrize(
    ("num_checks", "verbose", "codes"),
    [
        (2, False, "DAT001 DAT002"),
        (3, False, "DAT001 DAT002 DAT003"),
        (4, False, "DAT001 and 3 more"),
        (7, False, "DAT001 and 6 more"),
        (7, True, " ".join(IDS)),
    ],
)
def test_codes_leave_room_for_the_reason(num_checks, verbose, codes, monkeypatch):
    monkeypatch.setattr(preflight_view.console, "terminal_width", lambda: None if verbose else 80)
    checks = [CheckResult(each, "name", Level.DATA, Status.UNKNOWN, True, REASON) for each in IDS]
    (line,) = preflight_view._reasons_without_result(checks[:num_checks], verbose=verbose)
    assert line.startswith(f"unknown {codes}: data preparation failed")
