"""Static rules and the checks of local text, without probes of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from neobert.config.corpora import list_corpora
from neobert.config.schema import RunConfig
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.core import judge_available
from validators.facts import Facts, ProbeRecord
from validators.finding import CheckResult, Finding, Level

if TYPE_CHECKING:
    from validators.facts_text import TextFacts

GROUP = "text"


class TextChecks(NamedTuple):
    """Results of the rules, and the previewed texts.

    Attributes:
        note: reason why the texts were not checked; empty if they were.
    """

    findings: list[Finding]
    checks: list[CheckResult]
    texts: tuple[TextFacts, ...]
    note: str


def judge_with_text(run: ResolvedRun, plan: Plan, *, needs_data: bool = False) -> TextChecks:
    """Evaluate the static rules and the rules about files and first rows of local text.

    Without `needs_data`, parquet and `.zst` files, which need pyarrow, are not opened, and text that does not
    exist on this machine, as in CI, is unknown and not required.
    """
    texts, note = _preview_texts(run.config, needs_data=needs_data)
    record = (ProbeRecord(name=GROUP, status="incomplete", reason=note),) if note else ()
    facts = Facts(text=None if note else texts, probes=record)
    findings, checks = judge_available(run, plan, facts, (GROUP,))
    if note:
        checks = [each if each.level is Level.STATIC else replace(each, required=False) for each in checks]
    return TextChecks(findings, checks, texts, note)


def _preview_texts(config: RunConfig, *, needs_data: bool) -> tuple[tuple[TextFacts, ...], str]:
    if not any(corpus.path for corpus in list_corpora(config.dataset)):
        return (), ""
    from launcher.probes.text import text_facts
    from neobert.data.sources.preview import opens_without_pyarrow

    if needs_data:
        return text_facts(config), ""
    texts = text_facts(config, opens_without_pyarrow)
    absent = next((text.source for text in texts if not text.exists), "")
    note = f"{absent} does not exist here, so the text is not checked; `lint --data` requires the text"
    return texts, note if absent else ""
