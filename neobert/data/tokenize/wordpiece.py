"""Training of a BERT-style WordPiece tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.training_text import (
    PART_OF_WORD,
    head_of_texts,
    is_bert_uncased,
    normalizer,
    require_text,
    require_vocab_size,
    with_progress,
)
from neobert.progress import Progress

UNKNOWN = "[UNK]"
SPECIAL_TOKENS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
MAX_ALPHABET = 1000
MIN_COVERAGE = 0.9995
"""Minimum share of a text's characters in the vocabulary; Chinese and Korean exceed `MAX_ALPHABET` for it."""


def train_wordpiece(texts: Iterable[str], config: TokenizerConfig, vocab_size: int) -> Tokenizer:
    """Train a WordPiece of at most `vocab_size` tokens on texts that can be read twice.

    About the first `MAX_CHARACTERS` characters of `texts` are read, twice. The result is deterministic: the
    trainer of the library numbers continuation letters in the order of a hash map and breaks ties by these
    numbers, so the letters are numbered here first.
    Raises TOK004 for a size that is too small for words, DAT004 if there is no text.
    """
    require_vocab_size(vocab_size, 4 * len(SPECIAL_TOKENS), f"{len(SPECIAL_TOKENS)} special tokens")
    backend = _build_backend(config, models.WordPiece(unk_token=UNKNOWN))
    counting = Progress("tokenizer: counting letters", "documents")
    counts = _count_letters(with_progress(texts, counting), backend)
    require_text(has_text=bool(counts))
    letters = _frequent_letters(counts, config, vocab_size)
    continuations = [CONTINUATION + letter for letter in letters if _continues_words(letter, backend)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *continuations],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    counting = Progress("tokenizer: counting words", "documents", counting.done)
    backend.train_from_iterator(
        head_of_texts(with_progress(texts, counting, "tokenizer: merging pairs")), trainer
    )
    # In the trained tokenizer, continuation letters are special tokens.
    finished = _build_backend(config, models.WordPiece(backend.get_vocab(), unk_token=UNKNOWN))
    finished.add_special_tokens(list(SPECIAL_TOKENS))
    return finished


def _build_backend(config: TokenizerConfig, model: models.WordPiece) -> Tokenizer:
    is_bert = is_bert_uncased(config)
    backend = Tokenizer(model)
    backend.normalizer = normalizer(config)
    words = pre_tokenizers.BertPreTokenizer()
    # The model reads a word of more than 100 characters as [UNK]: a clause of Thai, which has no spaces.
    long_words = pre_tokenizers.Split(Regex(rf"\S{{{PART_OF_WORD}}}"), "isolated")
    backend.pre_tokenizer = words if is_bert else pre_tokenizers.Sequence([words, long_words])
    # The clean-up writes "do not" as "don't".
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=is_bert)
    return backend


def _count_letters(texts: Iterable[str], backend: Tokenizer) -> Counter[str]:
    """Count the characters that are part of words after normalization."""
    characters: Counter[str] = Counter()
    for text in head_of_texts(texts):
        # The normalizer maps each ASCII character by itself, so only the distinct ones have to be normalized.
        characters.update(text if text.isascii() else backend.normalizer.normalize_str(text))
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        for letter in backend.normalizer.normalize_str(character):
            if backend.pre_tokenizer.pre_tokenize_str(letter):
                counts[letter] += count
    return counts


def _frequent_letters(counts: Counter[str], config: TokenizerConfig, vocab_size: int) -> list[str]:
    """Return the most frequent letters, sorted; at most a quarter of `vocab_size`."""
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))
    size = MAX_ALPHABET
    if not is_bert_uncased(config):
        least = MIN_COVERAGE * counts.total()
        covered = accumulate(counts[letter] for letter in letters)
        size = max(size, 1 + sum(total < least for total in covered))
    return sorted(letters[: min(size, vocab_size // 4)])


def _continues_words(letter: str, backend: Tokenizer) -> bool:
    """Return whether the character can be inside a word; punctuation is a separate word."""
    return len(backend.pre_tokenizer.pre_tokenize_str("a" + letter)) == 1
