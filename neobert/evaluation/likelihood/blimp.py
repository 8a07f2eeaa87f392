"""BLiMP (Warstadt et al., 2020): share of minimal pairs in which the acceptable sentence scores higher.

The score of a sentence is its pseudo-log-likelihood. Ties count as wrong, so that a model with the same score
for every sentence gets 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neobert.config.text_formats import PARQUET, text_format
from neobert.data.sources.text_files import read_table
from neobert.encoding.texts import size_and_digest
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.likelihood.job import Settings, score_all
from neobert.plurals import counted
from neobert.runfiles.evaluation_report import SUMMARY, WEIGHTS, ReportFigure, summary_json

if TYPE_CHECKING:
    from neobert.evaluation.likelihood.scorer import Likelihoods

CODE = "blimp-files"
KINDS = (".jsonl", PARQUET)
KIND, SCHEMA_VERSION = "neobert-blimp", 1
COLUMNS = ("sentence_good", "sentence_bad")
PARADIGM, PHENOMENON, FIELD = "UID", "linguistics_term", "field"
PUBLISHED_PAIRS, PUBLISHED_PARADIGMS = 67_000, 67


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """A minimal pair: an acceptable sentence, and an unacceptable one that differs minimally."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    field: str


def evaluate_blimp(data: Path, settings: Settings, pairs_per_paradigm: int | None) -> dict[str, Any]:
    """Score the pairs of a file or folder, and return a report with accuracies as JSON values.

    `pairs_per_paradigm`: None for all pairs. Raises `ProjectError` if there are no pairs.
    """
    files = _paradigm_files(data)
    pairs = list(_read_pairs(files, pairs_per_paradigm))
    if not pairs:
        hint = f"pass BLiMP's files, whose rows have {' and '.join(COLUMNS)}"
        raise ProjectError(CODE, "the data has no minimal pairs", hint, str(data), EXIT_USAGE)
    identity = {"texts": [size_and_digest(file) for file in files], "pairs_per_paradigm": pairs_per_paradigm}
    texts = (text for pair in pairs for text in (pair.good, pair.bad))
    scores = score_all(texts, identity, settings, 2 * len(pairs))
    report = accuracies(pairs, scores.values)
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": settings.folder,
        WEIGHTS: scores.weights,
        SUMMARY: _report_summary(report, scores.counts.truncated),
        **report,
        "truncated": scores.counts.truncated,
        "kernels": scores.kernels,
        "seconds": round(scores.seconds, 3),
    }


def _report_summary(report: Mapping[str, Any], truncated: int) -> dict[str, Any]:
    shares = {"all": report["accuracy"], **report["phenomena"]}
    figures = [ReportFigure(name=name, metric="accuracy", value=value) for name, value in shares.items()]
    notes = [f"{counted(report['pairs'], 'pair')}; equal scores count as wrong; paradigms weigh the same"]
    notes += [f"not comparable with published scores: {reason}" for reason in report["not_comparable"]]
    notes += [f"{counted(truncated, 'sentence')} truncated"] if truncated else []
    return summary_json("BLiMP", figures, notes)


def accuracies(pairs: Sequence[MinimalPair], scores: Likelihoods) -> dict[str, Any]:
    """Return the accuracy by paradigm, phenomenon and field. `scores` [2 N pairs, 2]: good, bad, good, bad.

    The accuracy of several paradigms is the mean of their accuracies.
    """
    good, bad = scores[0::2, 0], scores[1::2, 0]
    is_right = (good > bad).tolist()
    by_paradigm: dict[str, list[bool]] = {}
    groups: dict[str, dict[str, set[str]]] = {PHENOMENON: {}, FIELD: {}}
    for pair, right in zip(pairs, is_right, strict=True):
        by_paradigm.setdefault(pair.paradigm, []).append(right)
        groups[PHENOMENON].setdefault(pair.phenomenon, set()).add(pair.paradigm)
        groups[FIELD].setdefault(pair.field, set()).add(pair.paradigm)
    shares = {name: fmean(rights) for name, rights in sorted(by_paradigm.items())}

    def mean_by_group(members: Mapping[str, Iterable[str]]) -> dict[str, float]:
        return {name: fmean(shares[each] for each in sorted(members[name])) for name in sorted(members)}

    is_whole = (len(pairs), len(shares)) == (PUBLISHED_PAIRS, PUBLISHED_PARADIGMS)
    size = f"{counted(len(pairs), 'pair')} of {counted(len(shares), 'paradigm')}; BLiMP has "
    size += f"{PUBLISHED_PAIRS:,} pairs of {PUBLISHED_PARADIGMS} paradigms"
    return {
        "pairs": len(pairs),
        "ties": int((good == bad).sum()),
        "accuracy": fmean(shares.values()),
        "phenomena": mean_by_group(groups[PHENOMENON]),
        "fields": mean_by_group(groups[FIELD]),
        "paradigms": shares,
        "not_comparable": [] if is_whole else [size],
    }


def _paradigm_files(data: Path) -> list[Path]:
    candidates = sorted(data.rglob("*")) if data.is_dir() else [data]
    files = [file for file in candidates if file.is_file() and text_format(file) in KINDS]
    if not files:
        hint = "pass the file blimp.jsonl, or the folder with a file per paradigm"
        raise ProjectError(CODE, f"there are no {' or '.join(KINDS)} files here", hint, str(data), EXIT_USAGE)
    return files


def _read_pairs(files: Sequence[Path], limit: int | None) -> Iterator[MinimalPair]:
    """Yield the first `limit` pairs of each paradigm, or all pairs if it is None."""
    taken: Counter[str] = Counter()
    for location, row in chain.from_iterable(map(read_table, files)):
        good, bad = (_require_sentence(row.get(column), location) for column in COLUMNS)
        others = (str(row.get(name) or "unknown") for name in (PARADIGM, PHENOMENON, FIELD))
        pair = MinimalPair(good, bad, *others)
        taken[pair.paradigm] += 1
        if limit is None or taken[pair.paradigm] <= limit:
            yield pair


def _require_sentence(value: object, location: str) -> str:
    """Return a sentence. Raises `ProjectError` if it is blank: it would score 0, the highest value."""
    if isinstance(value, str) and value.strip():
        return value
    raise ProjectError(
        CODE,
        f"the row has no text in {' or '.join(COLUMNS)}",
        "pass BLiMP's files, or correct the row",
        location,
    )
