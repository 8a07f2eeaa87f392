"""SARIF against the parts of the 2.1.0 standard that a report uses: closed objects, required keys."""

import json

import jsonschema
import pytest
from hypothesis import given

from launcher.report.formats import render
from tests.launcher.test_formats import REPORTS, TEXT, several, thing

COUNT = {"type": "integer", "minimum": 1}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
MESSAGE = thing("text", text=TEXT, markdown=TEXT)
RULE = thing(
    "id",
    id=TEXT,
    name=TEXT,
    shortDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=thing(level=LEVEL, enabled={"type": "boolean"}),
)
PLACE = thing(
    "artifactLocation",
    artifactLocation=thing(uri={"type": "string", "format": "uri-reference"}),
    region=thing(startLine=COUNT, startColumn=COUNT),
)
LOCATION = thing(
    physicalLocation=PLACE,
    message=MESSAGE,
    logicalLocations=several(thing(fullyQualifiedName=TEXT, kind=TEXT)),
)
RESULT = thing(
    "message",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    message=MESSAGE,
    locations=several(LOCATION),
    relatedLocations=several(LOCATION),
    suppressions=several(thing("kind", kind={"enum": ["inSource", "external"]})),
)
RUN = thing(
    "tool",
    tool=thing("driver", driver=thing("name", name=TEXT, version=TEXT, rules=several(RULE))),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": RESULT},
    invocations=several(
        thing("executionSuccessful", executionSuccessful={"type": "boolean"}, exitCode={"type": "integer"})
    ),
)
LOG = thing(
    "version", "runs", **{"$schema": {"type": "string"}}, version={"const": "2.1.0"}, runs=several(RUN)
)


VALIDATOR = jsonschema.Draft7Validator(LOG)


def test_the_schema_is_one():
    VALIDATOR.check_schema(LOG)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({"version": "2.1.0", "runs": [{"tool": {}}]})


@given(REPORTS)
def test_a_report_is_sarif_whose_results_name_their_rules(report):
    sarif = json.loads(render(report, "sarif"))
    VALIDATOR.validate(sarif)
    (run,) = sarif["runs"]
    assert run["invocations"][0]["exitCode"] == report.exit_code
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == [
        result["ruleId"] for result in run["results"]
    ]
