"""Every hint is followed: the edit that it names ends the finding, and brings no new failure."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from neobert.config import all_keys, to_dict
from neobert.config.canonical import flatten
from neobert.config.schema import RunConfig
from profiles.registry import resolve_run
from tests.validators.conftest import Judged, Situation, judge_in, write_run
from tests.validators.test_branches import ROWS
from tests.validators.test_rules import CASES
from validators.core import STATIC
from validators.finding import Finding, Severity

KEY = "|".join(sorted(map(re.escape, all_keys()), key=len, reverse=True))
VALUE = (
    r"(?:true|false|null)\b|\[[^\]]*\]|-?\d[\d.]*(?:e-?\d+)?(?!\S*\w)|its default"
    r"|[\w./]+(?=$|[,;]| and | \()"
)
EDIT = re.compile(
    rf"(?P<verb>set|remove|raise|lower|or|and) (?P<key>{KEY})(?:(?:, e\.g\.)? to (?P<value>{VALUE})"
    r"| between (?P<least>\S+) and (?P<most>[\d.e-]+)|(?! to| near|, e\.g\.))"
)
ALTERNATIVES = re.compile(
    r"; or |; |,? or (?=set |remove |raise |lower )|, or |(?<=\S) or (?=[a-z_]+\.[a-z_])"
)
VERBS = ("set", "remove", "raise", "lower")
MAX_STEPS = 40
"""Halvings or doublings of a value that is to be lowered or raised."""
FEW = 8
DEFAULTS = flatten(to_dict(RunConfig()))

MEASURED_AGAIN = {
    "ATT002", "DAT003", "DAT004", "DAT005", "DAT017", "DAT024", "DAT029", "DAT035",
    "GPU001", "GPU002", "HST003", "HST004", "MEM001", "PRF001", "PRF003", "PRF004", "SFT002",
    "SFT005", "SFT007", "SFT008", "SFT009", "SFT010", "TSK006", "TSK012",
}  # fmt: skip
"""Rules whose finding is about recorded facts, which would be measured again after the edit."""
IN_THE_FILE = {"MEM004"}
"""Rules that want a value in the run file, even that of its profile."""
NO_EDIT = {
    "a command, a package, the environment or another machine": """
ATT001 ATT007 DST001 DST002 DST003 DST004 DST005 DST006 GPU001 GPU002 GPU003 GPU004 GPU005 GPU006 GPU007
GPU008 HST001 HST002 HST003 HST004 HST005 HST006 HST007 HST008 HST009 HST010 HST011 HST012 MEM002
PRE002
""",
    "the run file is written anew, which the tests of the loader and of `lint --fix` follow": """
CFG001 CFG002 CFG003 CFG006 CFG007 CFG011 CFG012
""",
    "a path, a name or a number that only the user knows": """
CFG005 CFG008 CFG009 CKP005 CKP007 CKP008 CKP012 CKP016 CKP017 DAT001 DAT006 DAT007 DAT008 DAT009 DAT013
DAT018 DAT026 DAT031 DAT032 DAT033 DAT034 MOD001 NUM001 NUM002 NUM003 SCH004 SCH005
PLG001 SFT002 TSK002 TSK004 TSK008 TSK011 TSK014
""",
    "the data, the disk or the code is repaired": """
CKP004 CKP006 CKP009 DAT002 DAT003 DAT005 DAT014 DAT015 DAT021 DAT022 DAT024 DAT030 DAT038
MEM003 NUM004 NUM005 NUM006
PLG002 PLG003 PRE003 PRF002 SCH002 SCH003 SFT001 SFT003 SFT004 SFT006 TSK013 TSK015 TEL001 TEL002
""",
}
"""Rules with a hint that names no edit of the run file, by the reason."""
WITHOUT_EDIT = {code for codes in NO_EDIT.values() for code in codes.split()}


class Edit(NamedTuple):
    """An edit of a hint; the value is None for a key that is to be removed, raised or lowered."""

    verb: str
    key: str
    value: Any = None


def ways_in(hint: str) -> Iterator[list[Edit]]:
    """Yield the alternatives of a hint, each a list of edits."""
    verb = next(iter(re.findall("|".join(VERBS), hint)), "")
    for clause in ALTERNATIVES.split(hint):
        edits: list[Edit] = []
        for each in EDIT.finditer(clause if clause.startswith(VERBS) else f"or {clause}"):
            verb, key, value = each["verb"] if each["verb"] in VERBS else verb, each["key"], each["value"]
            if each["least"]:
                yield from ([Edit("set", key, yaml.safe_load(each[end]))] for end in ("least", "most"))
            elif verb == "set" and value is not None:
                edits.append(
                    Edit(verb, key, DEFAULTS[key] if value == "its default" else yaml.safe_load(value))
                )
            elif verb in VERBS[1:] and value is None:
                edits.append(Edit(verb, key))
        if edits:
            yield edits


def situations() -> Iterator[tuple[str, Situation]]:
    """Yield the code and the failing situation of each fixture and of each branch."""
    for code, case in CASES.items():
        for value in [case["failing"], *case.get("at_limit", {}).get("failing", [])]:
            yield code, case.get("base", {}) | {case["vary"]: value}
    for code, base, key, failing, *_ in ROWS:
        yield code, base | {key: failing}


def values_of(situation: Situation, folder: Path) -> dict[str, Any]:
    run = resolve_run(None, [write_run(situation, folder)], situation.get("overrides", []))
    return flatten(to_dict(run.config))


def moved(edit: Edit, value: Any) -> Any:
    """Return a value that is half or twice as large; a small number of things changes by one."""
    if edit.verb == "raise":
        return 2 * value or 1
    return max(1, value - 1 if value <= FEW else value // 2) if isinstance(value, int) else value / 2


def edited(situation: Situation, way: list[Edit], values: dict[str, Any]) -> Situation:
    changed = dict(situation)
    for edit in way:
        if edit.verb == "remove":
            del changed[f"config.{edit.key}"]
        else:
            value = edit.value if edit.verb == "set" else moved(edit, values[edit.key])
            changed[f"config.{edit.key}"] = values[edit.key] = value
    return changed


def followed(
    situation: Situation, way: list[Edit], values: dict[str, Any], finding: Finding, folder: Path
) -> Judged:
    """Judge the situation after the edits; a value is raised or lowered until the finding is gone."""
    is_repeated = way[0].verb in ("raise", "lower") and finding.code not in MEASURED_AGAIN
    for _ in range(MAX_STEPS if is_repeated else 1):
        situation = edited(situation, way, values)
        judged = judge_in(folder, situation)
        if not is_open(finding, judged):
            break
    return judged


def is_open(finding: Finding, judged: Judged) -> bool:
    found, _ = judged.at_level_of(finding.code)
    return any((each.code, each.path) == (finding.code, finding.path) for each in found)


def failures(judged: Judged, family: str) -> set[tuple[str, str]]:
    """Return code and key of the failures of static rules of a family: facts are not measured again."""
    static, _ = judged.report_of(STATIC)
    fails = (each for each in static if each.severity is Severity.FAIL)
    return {(each.code, each.path) for each in fails if each.code.startswith(family)}


@pytest.mark.parametrize("code", sorted(CASES))
def test_the_edits_of_a_hint_end_the_finding(code, tmp_path, judge_once):
    hints: dict[str, tuple[Situation, Judged, Finding]] = {}
    for situation in (each for name, each in situations() if name == code):
        judged = judge_once(situation)
        for finding in judged.of(code):
            hints.setdefault(finding.hint, (situation, judged, finding))
    assert any(not [*ways_in(hint)] for hint in hints) == (code in WITHOUT_EDIT), "listed, or with an edit"
    remains = False
    for hint, (situation, before, finding) in hints.items():
        for way in ways_in(hint):
            values = values_of(situation, tmp_path)
            assert all(f"config.{each.key}" in situation for each in way if each.verb == "remove"), hint
            is_set = all(each.verb == "set" and values[each.key] == each.value for each in way)
            assert not is_set or code in IN_THE_FILE, hint
            judged = followed(situation, way, values, finding, tmp_path)
            assert judged.report_of(STATIC)[1], hint
            assert failures(judged, code[:3]) <= failures(before, code[:3]), hint
            assert not is_open(finding, judged) or code in MEASURED_AGAIN, hint
            remains |= is_open(finding, judged)
    assert remains == (code in MEASURED_AGAIN)
