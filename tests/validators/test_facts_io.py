"""Facts survive JSON, and JSON that is no facts is refused with its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refusal_of
from tests.validators.conftest import RECORDED
from validators.facts import NO_FACTS, Facts, ProbeRecord
from validators.facts_gpu import GpuFacts
from validators.facts_host import (
    DataFacts,
    DiskFacts,
    GitFacts,
    HostFacts,
    OutputFacts,
    ResumeFacts,
    SchedulerFacts,
    SoftwareFacts,
    TrackerFacts,
)
from validators.facts_io import facts_from_json, facts_to_json

FINITE = st.floats(allow_nan=False, allow_infinity=False)

GROUPS = {
    "software": SoftwareFacts,
    "git": GitFacts,
    "host": HostFacts,
    "disk": DiskFacts,
    "output": OutputFacts,
    "resume": ResumeFacts,
    "tracker": TrackerFacts,
    "data": DataFacts,
}

any_facts = st.builds(
    Facts,
    schema_version=st.just(1),
    probes=st.lists(st.builds(ProbeRecord, duration_s=FINITE), max_size=2).map(tuple),
    scheduler=st.none() | st.builds(SchedulerFacts, walltime_left_s=st.none() | FINITE, signal_lead_s=FINITE),
    gpus=st.none() | st.lists(st.builds(GpuFacts), max_size=2).map(tuple),
    **{name: st.none() | st.builds(kind) for name, kind in GROUPS.items()},
)


@given(any_facts)
def test_facts_survive_json(facts):
    text = facts_to_json(facts)
    assert facts_from_json(text) == facts
    assert facts_to_json(facts_from_json(text)) == text


def test_a_group_that_is_left_out_was_not_probed():
    assert facts_from_json('{"schema_version": 1}') == NO_FACTS


def broken(path, value):
    tree = json.loads(RECORDED)
    *parents, last = path.split(".")
    node = tree
    for name in parents:
        node = node[int(name)] if isinstance(node, list) else node[name]
    node[last] = value
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        ("{}", "schema_version is None"),
        (broken("schema_version", 2), "schema_version is 2"),
        (broken("schema_version", True), "schema_version"),
        (broken("weather", "rain"), "weather: unknown field"),
        (broken("disk.colour", "red"), "disk.colour: unknown field"),
        (broken("disk", {"path": "/"}), "disk.filesystem: field required"),
        (broken("disk.free_mib", 1.5), "disk.free_mib should be a valid integer, got 1.5"),
        (broken("disk.free_mib", True), "disk.free_mib should be a valid integer, got True"),
        (broken("disk.is_writable", 1), "disk.is_writable should be a valid boolean"),
        (broken("disk", []), "disk should be an object"),
        (broken("gpus", {}), "gpus should be a valid array"),
        (broken("gpus.0.compute_capability", [8]), "gpus.0.compute_capability.1: field required"),
        (broken("probes.0.status", "fine"), "probes.0.status should be 'ok', 'unsupported'"),
        (broken("host.environment", {"A": 1}), "host.environment.A should be a valid string"),
        (broken("scheduler.signal_lead_s", None), "scheduler.signal_lead_s should be a valid number"),
        (
            RECORDED.replace('"signal_lead_s": 0.0', '"signal_lead_s": NaN'),
            "scheduler.signal_lead_s should be a finite number, got nan",
        ),
        (
            RECORDED.replace('"signal_lead_s": 0.0', '"signal_lead_s": 1e999'),
            "scheduler.signal_lead_s should be a finite number, got inf",
        ),
        (
            RECORDED.replace('"signal_lead_s": 0.0', f'"signal_lead_s": {10**400}'),
            "scheduler.signal_lead_s should be a finite number",
        ),
    ],
)
def test_what_is_no_facts_is_refused(text, fragment):
    error = refusal_of(facts_from_json, "unreadable-facts", fragment, text, "elsewhere.json")
    assert error.place == "elsewhere.json"
    assert error.exit_code == 2


def test_recorded_facts_are_read_as_they_are():
    facts = facts_from_json(RECORDED)
    assert json.loads(facts_to_json(facts)) == json.loads(RECORDED)


def test_a_recording_keeps_facts_beside_how_they_were_judged():
    assert facts_from_json(f'{{"verdict": "pass", "facts": {RECORDED}}}') == facts_from_json(RECORDED)


def test_a_whole_number_is_read_as_the_float_that_it_stands_for():
    facts = facts_from_json(broken("scheduler.signal_lead_s", 120))
    assert facts.scheduler is not None
    assert type(facts.scheduler.signal_lead_s) is float
