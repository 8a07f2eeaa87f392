"""Text that a tokenizer is trained on: normalized, its head, without words that take hours to train on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tokenizers import normalizers

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.long_texts import cut_into_pieces
from neobert.errors import ProjectError
from neobert.progress import LOG, Progress

# More text than this adds noise to a vocabulary, not words; and a stream may have no end.
MAX_CHARACTERS = 1 << 28
MAX_WORD, PART_OF_WORD = 2000, 100
_LETTER = r"[^\s!-/:-@\[-`{-~]"
_LONG_WORD = re.compile(f"(?<!{_LETTER}){_LETTER}{{{MAX_WORD + 1},}}")
"""A word of more than `MAX_WORD` characters: each merge of a pair reads the whole word."""


def is_bert_uncased(config: TokenizerConfig) -> bool:
    """Return whether the tokenizer to train normalizes text exactly as bert-base-uncased does.

    Earlier versions trained only this kind, so it must not change: a run of theirs trains the same tokenizer.
    """
    return config.algorithm == "wordpiece" and config.lowercase and config.strip_accents


def normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """Build the normalizer of the tokenizer to train: NFC, and the options of the config.

    For WordPiece, which splits words at whitespace, whitespace is added around each Chinese character.
    """
    if is_bert_uncased(config):
        return normalizers.BertNormalizer(lowercase=True)
    changes = normalizers.BertNormalizer(
        clean_text=False,  # it deletes joiners, which distinguish words of Persian and of Indian languages
        handle_chinese_chars=config.algorithm == "wordpiece",
        strip_accents=config.strip_accents,
        lowercase=config.lowercase,
    )
    # The deletion of accents leaves Korean letters decomposed.
    return normalizers.Sequence([changes, normalizers.NFC()])


def with_progress(texts: Iterable[str], progress: Progress, following: str = "") -> Iterator[str]:
    """Yield and count the texts; after the last text, log `following`, the name of the next phase."""
    for text in texts:
        yield text
        progress.advance()
    if following:
        LOG.info(following)


def head_of_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield about the first `MAX_CHARACTERS` characters of the texts; only long texts and words are split."""
    characters = 0
    for text in texts:
        for piece in cut_into_pieces(text, lambda _, after: after[:1].isspace()):
            yield _LONG_WORD.sub(_split_word, piece) if len(piece) > MAX_WORD else piece
        characters += len(text)
        if characters >= MAX_CHARACTERS:
            return


def _split_word(word: re.Match[str]) -> str:
    """Split a long word into parts of `PART_OF_WORD` characters, separated by spaces."""
    return " ".join(word[0][at : at + PART_OF_WORD] for at in range(0, len(word[0]), PART_OF_WORD))


def require_text(*, has_text: bool) -> None:
    """Raise DAT004 if there is no text to train on."""
    if not has_text:
        raise ProjectError(
            "DAT004",
            "there is no text to train a tokenizer on",
            "add text, or lower dataset.eval_samples or dataset.validation_split",
            "dataset",
        )


def require_vocab_size(vocab_size: int, min_size: int, others: str) -> None:
    """Raise TOK004 for a size below `min_size`; `others` names the tokens that are not words."""
    if vocab_size < min_size:
        raise ProjectError(
            "TOK004",
            f"vocab_size {vocab_size} has no space for words next to {others}",
            f"set tokenizer.vocab_size to a few thousand, at least {min_size}",
            "tokenizer.vocab_size",
        )
