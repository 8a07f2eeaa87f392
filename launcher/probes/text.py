"""Files and first rows of local text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from unicodedata import category, normalize

from neobert.config.corpora import list_corpora
from neobert.config.schema import RunConfig
from neobert.data.sources.preview import CanOpen, Preview, preview_local_text
from neobert.plan.normalization import Normalization, read_normalization
from neobert.tasks.specs import spec_of
from validators.facts_text import TextFacts, UnusedTextFacts

if TYPE_CHECKING:  # `lint` needs no child processes
    from launcher.probes.probe import Subject

NAMES = [item.name for item in fields(UnusedTextFacts)]


def probe_text(subject: Subject) -> tuple[TextFacts, ...]:
    """Return the facts of each local corpus of the run, from a preview of its files."""
    return text_facts(subject.config)


def text_facts(config: RunConfig, can_open: CanOpen = lambda _: True) -> tuple[TextFacts, ...]:
    """Return the facts of each local corpus of a run; files that `can_open` rejects are not read."""
    rows = spec_of(config).rows(config)
    normalization = read_normalization(config.tokenizer)
    return tuple(
        _text_facts(
            preview_local_text(corpus, rows.with_text_column(corpus.text_column), can_open), normalization
        )
        for corpus in list_corpora(config.dataset)
        if corpus.path
    )


def _text_facts(preview: Preview, normalization: Normalization | None) -> TextFacts:
    error = preview.error
    return TextFacts(
        source=preview.label,
        exists=preview.exists,
        formats=preview.formats,
        num_eval_files=preview.num_eval_files,
        left_out=tuple(
            UnusedTextFacts(**{name: getattr(each, name) for name in NAMES}) for each in preview.left_out
        ),
        documents=preview.documents,
        eval_characters=preview.eval_characters,
        shared_characters=preview.shared_characters,
        **({} if normalization is None else _changed_word_facts(preview.sample, normalization)),
        place="" if error is None else error.place,
        message="" if error is None else error.message,
        hint="" if error is None else error.hint,
    )


class _PunctuationToSpace(dict[int, int]):
    """Table for `str.translate` that maps punctuation to spaces; each character is looked up once."""

    def __missing__(self, code: int) -> int:
        return self.setdefault(code, ord(" ") if category(chr(code)).startswith("P") else code)


SPACED = _PunctuationToSpace()


def _changed_word_facts(sample: Sequence[str], normalization: Normalization) -> dict[str, Any]:
    """Return the fields of `TextFacts` about words whose accents or case the tokenizer changes."""
    texts = (normalize("NFC", text).translate(SPACED) for text in sample)
    words = Counter(word for text in texts for word in text.split())
    without_case = Normalization(lowers_case=False, deletes_accents=normalization.deletes_accents)
    altered = [word for word in words if without_case.apply(word) != word]
    lowered = [word for word in words if word == without_case.apply(word) != normalization.apply(word)]
    facts: dict[str, Any] = {"words": words.total()}
    for name, changed in (("altered", altered), ("lowered", lowered)):
        facts[f"{name}_words"] = sum(words[word] for word in changed)
        if changed:
            example = max(changed, key=lambda word: words[word])
            facts[f"{name}_example"] = (example, normalization.apply(example))
    return facts
