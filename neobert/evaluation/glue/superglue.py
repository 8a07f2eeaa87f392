"""SuperGLUE tasks that classify texts, and conversion of their rows. Imports no torch.

Rows have the columns of the published JSON lines, or of the flat tables on the Hub. Words that a
question refers to are marked in the text, as in T5 (Raffel et al., 2020): `* word *`, and `# span #` for the
first of two spans.

RTE is the GLUE task. ReCoRD is omitted: it chooses among the entities of a passage, and a classifier scores
single texts. `starts_from` is the intermediate task of the paper's strongest baseline (Wang et al., 2019).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from neobert.evaluation.glue.task import GlueTask

FALSE_OR_TRUE = ("false", "true")
TEXT, PAIR = ("text",), ("pair",)
QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
_MARKUP = re.compile(r"<[^<>]{1,20}>")
"""An HTML tag; in the passages of MultiRC, tags surround the sentence numbers."""


def copa_rows(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield premise and question as text, and both alternatives as pair; the label selects an alternative."""
    choices = f"1: {row['choice1']} 2: {row['choice2']}"
    yield {
        "text": f"{row['premise']} {QUESTIONS[row['question']]}",
        "pair": choices,
        "label": row.get("label"),
    }


def wic_rows(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield both sentences with the word marked at its character offsets. Raises `ValueError` if invalid."""
    marked = []
    for number in (1, 2):
        sentence, start, end = row[f"sentence{number}"], row[f"start{number}"], row[f"end{number}"]
        if not 0 <= start < end <= len(sentence):
            raise ValueError(f"characters {start} to {end} are not in sentence{number}")
        marked.append(f"{sentence[:start]}* {sentence[start:end]} *{sentence[end:]}")
    yield {"text": marked[0], "pair": marked[1], "label": row.get("label")}


def wsc_rows(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the text with the noun phrase and the pronoun marked at their word indices.

    The indices are in the field `target`, else in the row. Raises `ValueError` if they are not in the text.
    """
    spans, words = row.get("target") or row, row["text"].split()
    for number, mark in ((1, "#"), (2, "*")):
        place, length = spans[f"span{number}_index"], len(spans[f"span{number}_text"].split())
        if not 0 <= place < place + length <= len(words):
            raise ValueError(f"span{number}_index {place} is not in the text")
        words[place] = f"{mark} {words[place]}"
        words[place + length - 1] = f"{words[place + length - 1]} {mark}"
    yield {"text": " ".join(words), "label": row.get("label")}


def multirc_rows(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a row per answer of every question, with its passage; a flat row contains one answer."""
    if "passage" not in row:
        question = f"{row['question']} {row['answer']}"
        yield {"text": question, "pair": _strip_markup(row["paragraph"]), "label": row.get("label")}
        return
    passage = _strip_markup(row["passage"]["text"])
    for question in row["passage"]["questions"]:
        for answer in question["answers"]:
            text = f"{question['question']} {answer['text']}"
            yield {"text": text, "pair": passage, "label": answer.get("label")}


def _strip_markup(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


TASKS = (
    GlueTask(
        name="boolq", folders=("boolq",), text=("question",), pair=("passage",), labels=FALSE_OR_TRUE,
        metrics=("accuracy",), train_rows=9_427, dev_rows=3_270, epochs=10,
        starts_from="mnli", max_length=256,
    ),
    GlueTask(
        name="cb", folders=("cb",), text=("premise",), pair=("hypothesis",),
        labels=("entailment", "contradiction", "neutral"), metrics=("accuracy", "f1"),
        train_rows=250, dev_rows=56, epochs=20, starts_from="mnli", max_length=256,
    ),
    GlueTask(
        name="copa", folders=("copa",), text=TEXT, pair=PAIR, labels=("choice1", "choice2"), expand=copa_rows,
        metrics=("accuracy",), train_rows=400, dev_rows=100, epochs=20,
    ),
    GlueTask(
        name="multirc", folders=("multirc",), text=TEXT, pair=PAIR, labels=FALSE_OR_TRUE, expand=multirc_rows,
        metrics=("f1",), train_rows=27_243, dev_rows=4_848, epochs=5, max_length=512,
    ),
    GlueTask(
        name="wic", folders=("wic",), text=TEXT, pair=PAIR, labels=FALSE_OR_TRUE, expand=wic_rows,
        metrics=("accuracy",), train_rows=5_428, dev_rows=638, epochs=10,
    ),
    GlueTask(
        name="wsc", folders=("wsc", "wsc.fixed"), text=TEXT, labels=FALSE_OR_TRUE, expand=wsc_rows,
        metrics=("accuracy",), train_rows=554, dev_rows=104, epochs=20, max_length=256,
    ),
)  # fmt: skip
