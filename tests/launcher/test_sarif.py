"""SARIF against the parts of the 2.1.0 standard that a report uses: closed objects, required keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 1}
LEVEL = {"enum": ["none", "note", "warning", "error"]}


def thing(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these keys and no others, as the standard closes all of its objects."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "uniqueItems": True}


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
LOCATION = thing(physicalLocation=PLACE, logicalLocations=several(thing(fullyQualifiedName=TEXT, kind=TEXT)))
RESULT = thing(
    "message",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    message=MESSAGE,
    locations={"type": "array", "items": LOCATION},
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

TEXTS = {
    "failing": "profile: a100-prod\ntrainer:\n  save_steps: 0\n",
    "misspelt": "profile: a100-prod\ntrainer:\n  save_step: 0\n",
    "foreign": "model:\n  dim: 128\ntrain:\n  steps: 500\n  precision: fp32\n",
    "unreadable": "a: [\n",
    "sound": "profile: a100-prod\n",
    "waived": "profile: a100-prod\nmodel:\n  num_hidden_layers: 7\n  intermediate_size: 3060\n"
    "waivers:\n  - {code: MOD001, reason: a trial of the spring, expires: 2999-12-31}\n",
}


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(LOG)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": "2.1.0", "runs": [{"tool": {}}]}, LOG)


@pytest.mark.parametrize("name", TEXTS)
def test_a_report_is_sarif(
    name: str, command: Callable[..., Any], run_file: Callable[..., Path], tmp_path: Path
) -> None:
    run_file(TEXTS[name], "läufe ü.yaml")
    answer = command("lint", tmp_path / "läufe ü.yaml", "--output-format", "sarif")
    sarif = json.loads(answer.out)
    jsonschema.validate(sarif, LOG)
    (run,) = sarif["runs"]
    assert bool(run["results"]) is (name != "sound")
    assert run["invocations"][0]["exitCode"] == answer.code
    if name == "waived":
        assert answer.code == 0
        assert all(result["suppressions"] for result in run["results"])
