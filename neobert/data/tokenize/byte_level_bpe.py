"""Training of a byte-level BPE tokenizer: it has a token for each byte, so that no text is unknown to it."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.training_text import (
    head_of_texts,
    normalizer,
    require_text,
    require_vocab_size,
    with_progress,
)
from neobert.progress import Progress

MASK = "[MASK]"
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", MASK)
WORDS = Regex(
    r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+",
)
"""Pattern of GPT-2, with combining marks (M) as parts of words: that splits Hindi at each vowel sign."""


def train_bpe(texts: Iterable[str], config: TokenizerConfig, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of at most `vocab_size` tokens on texts that can be read twice.

    A token includes the space before its word. A space is added before the first word of a text, so that a
    word has the same tokens in every position, also in a list of words.
    About the first `MAX_CHARACTERS` characters of `texts` are read.
    Raises TOK004 for a size that is too small for words, DAT004 if there is no text.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = f"{len(letters)} bytes and {len(SPECIAL_TOKENS)} special tokens"
    require_vocab_size(vocab_size, len(letters) + 4 * len(SPECIAL_TOKENS), others)
    require_text(has_text=any(text.strip() for text in texts))
    backend = _build_backend(config)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # The space before a masked word is part of the word, so it is part of the mask.
        special_tokens=[AddedToken(each, special=True, lstrip=each == MASK) for each in SPECIAL_TOKENS],
        initial_alphabet=letters,
        show_progress=False,
    )
    counting = Progress("tokenizer: counting words", "documents")
    backend.train_from_iterator(
        head_of_texts(with_progress(texts, counting, "tokenizer: merging pairs")), trainer
    )
    return backend


def _build_backend(config: TokenizerConfig) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizer(config)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="always", split=False),
            pre_tokenizers.Split(WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)  # a named entity starts after the space
    return backend
