"""`rule`: documentation of one rule, or the list of rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import validators.rules  # noqa: F401  registers every rule
from launcher.terminal import console
from launcher.terminal.console import has_colour, paint
from launcher.terminal.fold import reflow
from launcher.terminal.table import format_columns
from launcher.terminal.values import result_json
from neobert.config import all_keys
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import listed
from validators.finding import Severity
from validators.rule import RETIRED, RULES, Rule, current_code

ERROR_FAMILIES = ("CLI", "DGR", "EXP", "NAN", "NSA", "RCP", "REH", "SPK", "TOK", "TRK", "TRN")
"""Prefixes of error codes that have no rule and no page."""
MAX_SUGGESTED = 10

FENCE = "```"
HEADING = re.compile(r"#+ +(.+)")
INLINE_CODE = re.compile(r"`([^`\n]+)`")
COMMENT = re.compile(r"(?:^|\s)#.*$")
INDENT = "    "


def run(code: str | None, output_format: str, *, lists_all: bool) -> int:
    """Print the page of a rule, or list the rules: all if `code` is None, or a family such as CKP.

    Raises ProjectError for an unknown rule.
    """
    is_list = lists_all or code is None
    rules = [RULES[name] for name in sorted(RULES)] if is_list else find_family(code or "")
    if rules:
        content = {"rules": [_as_json(rule) for rule in rules]}
        console.write(result_json(content) if output_format == "json" else _list_text(rules))
        return EXIT_OK
    rule = find_rule(code or "")
    note_retired(code or "")
    console.write(result_json(_as_json(rule)) if output_format == "json" else page_text(rule))
    return EXIT_OK


def find_family(letters: str) -> list[Rule]:
    """Return the rules whose codes start with `letters`; empty if there are none or `letters` has digits."""
    begins = letters.upper() if letters.isalpha() else None
    return [RULES[code] for code in sorted(RULES) if begins and code.startswith(begins)]


def find_rule(code: str) -> Rule:
    """Return the rule with this name or code, or the successor of a retired code.

    Raises ProjectError if there is none.
    """
    by_name = {rule.name: rule for rule in RULES.values()}
    rule = RULES.get(current_code(code.upper())) or by_name.get(code.lower())
    if rule is None:
        raise ProjectError(
            code="unknown-rule",
            message=f"there is no rule {code}",
            hint=_suggestion(code, list(by_name)),
            exit_code=EXIT_USAGE,
        )
    return rule


def note_retired(code: str) -> None:
    """Log which rule replaces a retired code; do nothing for other codes."""
    if code.upper() in RETIRED:
        console.log(f"{code.upper()} is retired: {current_code(code.upper())} reports its findings")


def _suggestion(code: str, names: list[str]) -> str:
    if code in all_keys():
        return f"{code} is a config key: `neobert-launch explain {code}`"
    families = {*ERROR_FAMILIES, *(known[:3] for known in RULES)}
    if len(code) == 6 and code[3:].isdigit() and code.upper()[:3] in families:
        return "error codes have no page; `neobert-launch rule --all` lists the rules"
    starts = (code.upper(), code.lower())
    begun = [known for known in sorted((*RULES, *names)) if code and known.startswith(starts)]
    if len(begun) > 1:
        return f"did you mean one of {listed(begun, MAX_SUGGESTED)}?"
    padded = code.upper()[:3] + code[3:].zfill(3)  # CKP7
    near = begun or get_close_matches(padded, RULES, n=1) or get_close_matches(code.lower(), names, n=1)
    return f"did you mean {near[0]}?" if near else "`neobert-launch rule --all` lists the rules"


def page_text(rule: Rule) -> str:
    """Format the heading and the page of a rule for the terminal."""
    waivable = "waivable" if rule.waivable else "cannot be waived"
    scope = "production runs" if rule.production_only else "every run"
    title = console.paint(
        f"{rule.code} {rule.name}", "red" if rule.severity is Severity.FAIL else "yellow", "bold"
    )
    page = reflow(rule.page.strip(), console.terminal_width())
    is_for_people = console.is_terminal(sys.stdout) or console.has_colour(sys.stdout)
    page = "\n".join(_style_lines(page)) if is_for_people else page
    traits = console.paint(f"{rule.severity} · {rule.level} · {scope} · {waivable}", "dim")
    return f"{title}\n{traits}\n\n{page}"


def _list_text(rules: list[Rule]) -> str:
    rows = [[rule.code, rule.name, str(rule.severity), str(rule.level), _first_line(rule)] for rule in rules]
    return format_columns(rows)


def _first_line(rule: Rule) -> str:
    return rule.page.strip().partition("\n")[0]


def _as_json(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": str(rule.severity),
        "level": str(rule.level),
        "needs": list(rule.needs),
        "production_only": rule.production_only,
        "waivable": rule.waivable,
        "page": rule.page.strip(),
    }


def _style_lines(page: str) -> Iterator[str]:
    is_code = False
    for line in page.split("\n"):
        if line.startswith(FENCE):
            is_code = not is_code
        elif is_code:
            yield INDENT + COMMENT.sub(lambda match: paint(match[0], "dim"), line) if line else ""
        elif heading := HEADING.fullmatch(line):
            yield paint(heading[1], "bold")
        else:
            yield INLINE_CODE.sub(_paint_inline_code, line)


def _paint_inline_code(match: re.Match[str]) -> str:
    return paint(match[1], "cyan") if has_colour(sys.stdout) else match[0]
