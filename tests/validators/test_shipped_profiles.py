"""No rule fires on a shipped profile."""

from __future__ import annotations

import pytest

from profiles.registry import list_profiles, load_profile, resolve_run
from validators.core import judge
from validators.finding import Status, verdict_of
from validators.planning import plan_run

PRODUCTION = [name for name in list_profiles() if load_profile(name).kind == "production"]


@pytest.mark.parametrize("name", list_profiles())
def test_shipped_profile_lints_clean(name):
    run = resolve_run(name)
    findings, checks = judge(run, plan_run(run))
    assert findings == []
    assert {check.status for check in checks} <= {Status.PASS, Status.SKIP}
    assert verdict_of(findings, checks, strict=True).name == "pass"


def test_there_are_production_profiles():
    assert len(PRODUCTION) >= 5
