"""Rule pages as Markdown: one page, or the catalogue that `python -m validators.pages` prints."""

from __future__ import annotations

from collections.abc import Iterable

import validators.rules  # noqa: F401  registers every rule
from validators.finding import Severity
from validators.rule import RULES, Rule

SECTIONS = ("What it does", "Why is this bad?", "Example", "Use instead")
BLOCKS = {Severity.FAIL: "blocks", Severity.WARN: "warns, blocks with `--strict`"}


def render_page(code: str) -> str:
    """Return the page of one rule as Markdown. Raises KeyError for a code that does not exist."""
    rule = RULES[code]
    return f"# {rule.code} {rule.name}\n\n{_rule_properties(rule)}\n\n{rule.page}\n"


def render_catalogue() -> str:
    """Return the pages of all rules as one Markdown document, after an introduction and a table."""
    rules = [RULES[code] for code in sorted(RULES)]
    pages = "\n".join(_demote_headings(render_page(rule.code)) for rule in rules)
    return f"{INTRODUCTION}\n{_rules_table(rules)}\n{pages}"


INTRODUCTION = """# Rules

Generated from the rules' docstrings by `python -m validators.pages > docs/rules.md`; a test keeps it current.

A rule is a pure function of a resolved run, its plan and recorded facts. It ends in pass, warn, fail, skip or
unknown; a required check that ends in skip or unknown never counts as a pass. Severities apply to production
profiles; rules for production runs only are marked. A waiver in the run file (`waivers:`, each with code,
reason and expiry date) accepts a finding until that date, except for rules that cannot be waived.
"""


def _rules_table(rules: Iterable[Rule]) -> str:
    head = ["| rule | level | in production | finding |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_rule_row, rules), ""])


def _rule_row(rule: Rule) -> str:
    link = f"[{rule.code} {rule.name}](#{rule.code.lower()}-{rule.name})"
    return f"| {link} | {rule.level} | {BLOCKS[rule.severity]} | {_rule_title(rule)} |"


def _rule_title(rule: Rule) -> str:
    return rule.page.partition("\n")[0]


def _rule_properties(rule: Rule) -> str:
    parts = [BLOCKS[rule.severity], f"level {rule.level}"]
    if rule.needs:
        parts.append(f"needs the facts {', '.join(rule.needs)}")
    if rule.production_only:
        parts.append("production runs only")
    if not rule.waivable:
        parts.append("cannot be waived")
    return f"*{'; '.join(parts)}*"


def _demote_headings(page: str) -> str:
    """Lower the headings of a page by one level, without changing comment lines in code blocks."""
    is_code = False
    lines: list[str] = []
    for line in page.splitlines():
        is_code ^= line.startswith("```")
        lines.append(f"#{line}" if line.startswith("#") and not is_code else line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_catalogue(), end="")
