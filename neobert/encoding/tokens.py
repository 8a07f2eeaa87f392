"""Tokenization of texts for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from neobert.config.schema import TokenizerConfig
from neobert.data.sources.text_files import replace_surrogates
from neobert.data.tokenize.encoding import SegmentEncoder, segment_encoder
from neobert.data.tokenize.framing import truncate_longest_first
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.encoding.counts import TextCounts
from neobert.encoding.packed_rows import Tokens
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import CODE


class TextTokenizer:
    """Tokenizer of framed texts, truncated to `max_length` tokens.

    Attributes:
        texts: encoder of whole texts, which may spell special tokens.
        words: encoder of words, whose special tokens are plain text.
        pairs: encoder of pairs, whose special tokens are plain text.
    """

    def __init__(self, bundle: TokenizerBundle, max_length: int) -> None:
        self.bundle = bundle
        self.max_length = max_length
        self.texts: SegmentEncoder = segment_encoder(bundle, max_length, 1, "truncate")
        self.words = replace(self.texts, is_plain=True)
        self.pairs = replace(self.words, framing=bundle.pair_framing)

    @classmethod
    def load(cls, folder: Path, max_length: int, num_rows: int, roles: Sequence[str] = ()) -> TextTokenizer:
        """Load the tokenizer of a model folder, with the special tokens `roles`.

        Raises `ProjectError` like `load_tokenizer`, and if the tokenizer has more tokens than the model has
        embedding rows, because most texts would then become unknown tokens.
        """
        bundle = load_tokenizer(TokenizerConfig(path=str(folder)), roles=roles)
        if bundle.num_tokens > num_rows:
            has = f"the tokenizer has {bundle.num_tokens:,} tokens"
            message = f"{has}, but the model has {num_rows:,} embedding rows"
            hint = "copy the tokenizer that the model was trained with into the folder"
            raise ProjectError(CODE, message, hint, str(folder), EXIT_USAGE)
        return cls(bundle, max_length)

    def tokenize(self, texts: Sequence[str]) -> tuple[list[Tokens], TextCounts]:
        """Return the tokens of each text, and the counts of texts and truncated tokens."""
        sequences, _, counts = self.tokenize_items([(text,) for text in texts])
        return sequences, counts

    def tokenize_items(self, items: Sequence[Sequence[str]]) -> tuple[list[Tokens], list[int], TextCounts]:
        """Return the tokens of each text or pair, the index where each second text begins, and the counts.

        For a single text, that index is its length. The counts are of texts and truncated tokens. A pair that
        is truncated loses tokens from its longer text first.
        """
        counts = TextCounts()
        sequences: list[Tokens] = []
        seconds: list[int] = []
        encoder = self.pairs if items and len(items[0]) > 1 else self.texts
        framing, texts = encoder.framing, (replace_surrogates(text) for item in items for text in item)
        ids, room = encoder.token_ids(texts), self.max_length - framing.size
        for item in items:
            parts = [list(next(ids)) for _ in item]
            length = sum(map(len, parts))
            if length > room:
                parts = truncate_longest_first(parts, room)
            sequences.append(np.array(framing.frame(*parts), dtype=np.int64))
            seconds.append(framing.second_start(parts[0]) if len(parts) > 1 else len(sequences[-1]))
            counts.truncated += length > room
            counts.tokens_lost += max(0, length - room)
            counts.empty += not length
        counts.texts, counts.tokens = len(sequences), sum(map(len, sequences))
        return sequences, seconds, counts
