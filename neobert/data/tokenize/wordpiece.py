"""Training of a BERT-style WordPiece tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from neobert.data.tokenize.long_texts import pieces_of
from neobert.errors import ProjectError
from neobert.progress import LOG, Progress

PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNKNOWN, START, END, MASK)
CONTINUATION = "##"
# More text than this adds noise to a vocabulary, not words; and a stream may have no end.
MAX_CHARACTERS = 1 << 28
MAX_ALPHABET = 1000
MAX_WORD, PART_OF_WORD = 2000, 100
_LETTER = r"[^\s!-/:-@\[-`{-~]"
_LONG_WORD = re.compile(f"(?<!{_LETTER}){_LETTER}{{{MAX_WORD + 1},}}")
"""A word of more than `MAX_WORD` characters: each merge of a pair reads the whole word."""


def train_wordpiece(texts: Iterable[str], vocab_size: int, out_dir: Path | None) -> PreTrainedTokenizerFast:
    """Train a lower-cased WordPiece of at most `vocab_size` tokens; save it to `out_dir` if given.

    About the first `MAX_CHARACTERS` characters of `texts` are read, twice. The result is deterministic: the
    trainer of the library numbers continuation letters in the order of a hash map and breaks ties by these
    numbers, so the letters are numbered here first.
    Raises TOK004 for a size that is too small for words, DAT004 if there is no text.
    """
    _check_size(vocab_size)
    if iter(texts) is texts:
        texts = list(_head(texts))
    backend = _bert_backend(models.WordPiece(unk_token=UNKNOWN))
    counting = Progress("tokenizer: counting letters", "documents")
    letters = _alphabet(_counted(texts, counting), backend, min(MAX_ALPHABET, vocab_size // 4))
    if not letters:
        raise ProjectError(
            "DAT004",
            "there is no text to train a tokenizer on",
            "add text, or lower dataset.eval_samples or dataset.validation_split",
            "dataset",
        )
    continuations = [CONTINUATION + letter for letter in letters if _continues_words(letter, backend)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *continuations],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    counting = Progress("tokenizer: counting words", "documents", counting.done)
    backend.train_from_iterator(_head(_counted(texts, counting, "tokenizer: merging pairs")), trainer)
    tokenizer = _finished(backend.get_vocab())
    if out_dir is not None:
        tokenizer.save_pretrained(out_dir)
    return tokenizer


def marker_template(start: str, end: str, backend: Tokenizer) -> processors.TemplateProcessing:
    """Build the post-processor for `start A end` and, for a pair of sequences, `start A end B end`."""
    return processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (start, end)],
    )


def _check_size(vocab_size: int) -> None:
    least = 4 * len(SPECIAL_TOKENS)
    if vocab_size < least:
        raise ProjectError(
            "TOK004",
            f"vocab_size {vocab_size} has no space for words next to {len(SPECIAL_TOKENS)} special tokens",
            f"set tokenizer.vocab_size to a few thousand, at least {least}",
            "tokenizer.vocab_size",
        )


def _bert_backend(model: models.WordPiece) -> Tokenizer:
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend


def _alphabet(texts: Iterable[str], backend: Tokenizer, limit: int) -> list[str]:
    """Return the most frequent characters after normalization, sorted."""
    characters: Counter[str] = Counter()
    for text in _head(texts):
        characters.update(text)
    counts: Counter[str] = Counter()
    # This normalizer maps each character by itself, so only the distinct ones have to be normalized.
    for character, count in characters.items():
        for letter in backend.normalizer.normalize_str(character):
            counts[letter] += count
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return sorted([letter for letter in letters if not letter.isspace()][:limit])


def _continues_words(letter: str, backend: Tokenizer) -> bool:
    """Return whether the character can be inside a word; punctuation is a separate word."""
    return len(backend.pre_tokenizer.pre_tokenize_str("a" + letter)) == 1


def _finished(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    """Build a tokenizer from a vocabulary; in the trained one, continuation letters are special tokens."""
    backend = _bert_backend(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = marker_template(START, END, backend)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=START,
        sep_token=END,
        mask_token=MASK,
    )


def _counted(texts: Iterable[str], progress: Progress, following: str = "") -> Iterator[str]:
    """Yield and count the texts; after the last text, log `following`, the name of the next phase."""
    for text in texts:
        yield text
        progress.advance()
    if following:
        LOG.info(following)


def _in_parts(word: re.Match[str]) -> str:
    """Split a long word into parts: as a whole, it takes hours to train on and is an unknown token anyway."""
    return " ".join(word[0][at : at + PART_OF_WORD] for at in range(0, len(word[0]), PART_OF_WORD))


def _head(texts: Iterable[str]) -> Iterator[str]:
    """Yield about the first `MAX_CHARACTERS` characters of the texts; only long texts and words are split."""
    characters = 0
    for text in texts:
        for piece in pieces_of(text, lambda _, after: after[:1].isspace()):
            yield _LONG_WORD.sub(_in_parts, piece) if len(piece) > MAX_WORD else piece
        characters += len(text)
        if characters >= MAX_CHARACTERS:
            return
