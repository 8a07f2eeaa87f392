"""Rows of the nested JSON file of SQuAD: articles, their paragraphs, and the questions on each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neobert.data.sources.unreadable import unreadable_error

MAX_CHARACTERS = 1 << 28
"""The file is read at once: the training file of SQuAD 2.0 has 42 million characters."""
_BEGINNING = re.compile(r'\s*\{\s*(?:"version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')
_PARAGRAPHS = "paragraphs"
_FROM_LIST = "write one JSON object per line: jq -c '.data[]' in.json > out.jsonl"
_SHAPE = "write an object with data, paragraphs and qas, as SQuAD has them, or one JSON object per line"


def is_squad(beginning: str) -> bool:
    """Return whether a JSON file begins like SQuAD: with `{"data": [`, possibly after a version."""
    return _BEGINNING.match(beginning) is not None


def squad_rows(texts: Iterable[str], path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (location for messages, values of a question by column). Raises DAT001 for any other content."""
    parts, size = list[str](), 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size > MAX_CHARACTERS:
            raise unreadable_error(path, f"is longer than {MAX_CHARACTERS:,} characters", _SHAPE)
    number = 0
    try:
        for article in json.loads("".join(parts))["data"]:
            for paragraph in article[_PARAGRAPHS]:
                for question in paragraph["qas"]:
                    number += 1
                    yield (
                        f"{path}, question {number}",
                        {
                            "id": question.get("id"),
                            "title": article.get("title"),
                            "context": paragraph["context"],
                            "question": question["question"],
                            "answers": question.get("answers"),
                        },
                    )
    except (ValueError, RecursionError) as error:
        raise unreadable_error(path, f"is not JSON: {error}", _SHAPE) from error
    except (KeyError, TypeError, AttributeError) as error:
        if number == 0 and error.args == (_PARAGRAPHS,):
            raise unreadable_error(
                path, "is not a SQuAD file: an entry of its list `data` has no `paragraphs`", _FROM_LIST
            ) from error
        raise unreadable_error(path, f"is not a SQuAD file: error after question {number}", _SHAPE) from error
