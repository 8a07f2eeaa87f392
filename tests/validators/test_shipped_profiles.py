"""No rule fires on a shipped profile."""

import pytest

from profiles.registry import list_profiles, load_profile, resolve_run
from validators.core import judge
from validators.finding import Status, compute_verdict
from validators.planning import plan_run


def brings_data(name):
    dataset = load_profile(name).config.dataset
    return bool(dataset.path or dataset.name or dataset.mixture)


@pytest.mark.parametrize("name", [name for name in list_profiles() if not brings_data(name)])
def test_a_parent_of_run_files_lacks_only_data(name):
    run = resolve_run(name)
    findings, _ = judge(run, plan_run(run))
    assert {finding.code for finding in findings} == {"DAT013"}


@pytest.mark.parametrize("name", [name for name in list_profiles() if brings_data(name)])
def test_shipped_profile_lints_clean(name):
    run = resolve_run(name)
    findings, checks = judge(run, plan_run(run))
    assert findings == []
    assert {check.status for check in checks} <= {Status.PASS, Status.SKIP}
    assert compute_verdict(findings, checks, strict=True).name == "pass"
