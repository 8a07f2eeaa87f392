"""Resumable evaluation on MTEB tasks, with a time estimate before the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mteb
from mteb.cache import ResultCache

from neobert.encoding import Encoder
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.embedder import (
    DOCUMENT_PREFIX,
    QUERY_PREFIX,
    describe_embedder,
    embedder_identity,
    load_embedder,
    prefix_notes,
    resolve_prompts,
)
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.mteb_suite.model import MtebModel, model_name
from neobert.evaluation.mteb_suite.summary import (
    averages,
    estimated_seconds,
    missing_note,
    report_figures,
    revision_digest,
)
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.evaluation_report import SUMMARY, summary_json

KIND, SCHEMA_VERSION = "neobert-mteb", 1
SAMPLE_TEXTS, SAMPLE_WORDS = 512, 80


def evaluate_tasks(
    model: EmbeddingModel, cache: Path, benchmark: str | None, names: Sequence[str]
) -> dict[str, Any]:
    """Run the tasks that have no cached result, and return the report of all of them.

    Args:
        cache: folder for mteb's results; a task with a result for the same model and settings is not
            repeated.
        benchmark, names: name of an MTEB benchmark, or names of tasks; exactly one of the two.

    Raises `ProjectError` for an unknown task or benchmark.
    """
    tasks = _load_tasks(benchmark, names)
    encoder = load_embedder(model)
    prompts = resolve_prompts(encoder, model)
    prefixes = (prompts[QUERY_PREFIX], prompts[DOCUMENT_PREFIX])
    revision = revision_digest(embedder_identity(encoder, model), prefixes)
    estimate_s = estimated_seconds(tasks, characters_per_second(encoder))
    _log_estimate(tasks, estimate_s)
    results = mteb.evaluate(
        MtebModel(encoder, model_name(Path(model.folder)), revision, prefixes),
        tasks,
        cache=ResultCache(cache),
        overwrite_strategy="only-missing",
        raise_error=False,
        show_progress_bar=False,
    )
    scores = {each.task_name: float(each.get_score()) for each in results.task_results}
    types = {task.metadata.name: str(task.metadata.type) for task in tasks}
    means = averages(scores, types)
    notes = [f"mteb {mteb.__version__}", *missing_note(means), *prefix_notes(prompts)]
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": model.folder,
        "mteb": mteb.__version__,
        "benchmark": benchmark,
        SUMMARY: summary_json("MTEB", report_figures(means), notes),
        **means,
        "failed": {each.task_name: printable(str(each.exception)) for each in results.exceptions or ()},
        "estimated_seconds": estimate_s,
        **describe_embedder(encoder, model),
    }


def _load_tasks(benchmark: str | None, names: Sequence[str]) -> list[Any]:
    try:
        if benchmark is not None:
            return list(mteb.get_benchmark(benchmark).tasks)
        return list(mteb.get_tasks(tasks=list(names)))
    except (KeyError, ValueError) as error:
        message = f"mteb has no such benchmark or task: {printable(str(error))}"
        hint = "choose a benchmark or tasks of the installed mteb"
        raise ProjectError("mteb-tasks", message, hint, exit_code=EXIT_USAGE) from None


def characters_per_second(encoder: Encoder) -> float:
    """Measure the encoding rate on `SAMPLE_TEXTS` texts of `SAMPLE_WORDS` words, after a warm-up call."""
    texts = [f"{number} " + "the quick brown fox " * (SAMPLE_WORDS // 4) for number in range(SAMPLE_TEXTS)]
    encoder.encode(texts[:32])
    started_s = time.perf_counter()
    encoder.encode(texts)
    return sum(map(len, texts)) / (time.perf_counter() - started_s)


def _log_estimate(tasks: Sequence[Any], estimate_s: Mapping[str, float | None]) -> None:
    known = [seconds for seconds in estimate_s.values() if seconds is not None]
    unknown = len(estimate_s) - len(known)
    rest = f"; {unknown} of unknown size" if unknown else ""
    message = f"{counted(len(tasks), 'task')}: about {sum(known) / 60:,.1f} min of encoding{rest}"
    print(f"{message}; classifiers, clustering and search take additional time", file=sys.stderr, flush=True)
