"""Facts about local text: its files and first rows. `lint` needs no others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedTextFacts:
    """Files in a text's folder that are not read. `reason` and `hint` are empty for files without text."""

    kind: str
    example: str
    num_files: int
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """Files of a local text, and what their first rows show.

    Attributes:
        source: paths of the text as configured.
        formats: number of files that are read, by suffix. `num_eval_files` of them are evaluation text.
        documents: number of training documents; None if it is not known without reading all of the text.
        eval_characters: characters of evaluation text that were compared with the first training documents;
            `shared_characters` of them are in training documents.
        words: words of the sample of the text; 0 if there is none, or the tokenizer is not on this machine.
        altered_words: number of them that the tokenizer changes beyond their case, by deleting accents or
            vowel signs; `altered_example`: the most frequent one and how the tokenizer reads it, or empty.
        lowered_words, lowered_example: the same for words that the tokenizer only converts to lower case.
        place, message, hint: first error of opening the files or reading their rows; empty if there is none.
    """

    source: str
    exists: bool
    formats: dict[str, int]
    num_eval_files: int = 0
    left_out: tuple[UnusedTextFacts, ...] = ()
    documents: int | None = None
    eval_characters: int = 0
    shared_characters: int = 0
    words: int = 0
    altered_words: int = 0
    altered_example: tuple[str, ...] = ()
    lowered_words: int = 0
    lowered_example: tuple[str, ...] = ()
    place: str = ""
    message: str = ""
    hint: str = ""
