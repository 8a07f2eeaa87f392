"""Files and first rows of local text."""

from __future__ import annotations

from dataclasses import fields

from launcher.probes.probe import Subject
from neobert.config.corpora import corpora_of
from neobert.config.schema import RunConfig
from neobert.data.sources.preview import CanOpen, Preview, preview_of
from neobert.tasks import spec_of
from validators.facts_host import LeftOutFacts, TextFacts

NAMES = [item.name for item in fields(LeftOutFacts)]


def probe_text(subject: Subject) -> tuple[TextFacts, ...]:
    """Preview the text as a run would read it."""
    return text_facts(subject.config)


def text_facts(config: RunConfig, can_open: CanOpen = lambda _: True) -> tuple[TextFacts, ...]:
    """Return the facts of each local corpus of a run; files that `can_open` excludes are listed only."""
    rows = spec_of(config).rows(config)
    return tuple(
        _facts(preview_of(corpus, rows.with_text_column(corpus.text_column), can_open))
        for corpus in corpora_of(config.dataset)
        if corpus.path
    )


def _facts(found: Preview) -> TextFacts:
    error = found.error
    return TextFacts(
        source=found.label,
        exists=found.exists,
        formats=found.formats,
        num_eval_files=found.num_eval_files,
        left_out=tuple(
            LeftOutFacts(**{name: getattr(each, name) for name in NAMES}) for each in found.left_out
        ),
        documents=found.documents,
        eval_characters=found.eval_characters,
        shared_characters=found.shared_characters,
        place="" if error is None else error.place,
        message="" if error is None else error.message,
        hint="" if error is None else error.hint,
    )
