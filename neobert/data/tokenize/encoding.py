"""Encoding of documents as segments: framed token ids, at most `max_length` each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from neobert.config.corpora import TOKENIZER_OF_THE_IDS
from neobert.data.sources.rows import TEXT, Row
from neobert.data.sources.token_shards import TokenText
from neobert.data.tokenize.ascii_texts import ascii_tokenizer
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.long_texts import cut_into_pieces
from neobert.errors import ProjectError
from neobert.runfiles.conversation_faults import Occurrence, merge_occurrences

if TYPE_CHECKING:  # at run time it costs each tokenizing process the import of transformers
    from neobert.data.tokenize.tokenizers import TokenizerBundle

LongDocuments = Literal["split", "truncate", "drop", "error"]
BATCH_DOCUMENTS = 512
# The tokenizers library holds about 90 bytes per token, and a character may be a token.
TOKENISED_CHARACTERS = 1 << 21
Item = TypeVar("Item")


@dataclass(slots=True)
class Counts:
    """Statistics of encoded documents. Lengths are in tokens, special tokens included.

    `histogram` counts documents with text by length: entry k counts documents of 2**(k-1)+1 to 2**k tokens.
    `one_sided` counts rows that have one text where the task reads two, which are kept. `left_out` counts
    what the task left out of the rows, by kind, beyond empty, short and long texts. `framing` counts the
    tokens that the tokenizer adds to texts, `unknown` unknown tokens, and `special` special tokens that the
    text itself contains, such as "[MASK]".
    `labels` counts segments, or words, by label if the task has labels. `words` counts labelled words: all
    (`total`), words `without_token`, and words `cut` off; the labels of the latter two are lost.
    Of conversations, `conversations` counts turns and tokens by what became of them, `stops` the tokens that
    end supervised turns, by id, and `faults` conversations by what is wrong with their supervised text.
    """

    documents: int = 0
    empty: int = 0
    one_sided: int = 0
    too_short: int = 0
    split: int = 0
    truncated: int = 0
    dropped: int = 0
    segments: int = 0
    tokens: int = 0
    tokens_lost: int = 0
    framing: int = 0
    unknown: int = 0
    special: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * 33)
    labels: dict[str, int] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    conversations: dict[str, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    faults: dict[str, Occurrence] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Add the counts of the batch that follows."""
        self.faults = merge_occurrences(self.faults, other.faults, self.documents)
        for item in fields(self):
            if item.name == "faults":
                continue
            setattr(self, item.name, _add_values(getattr(self, item.name), getattr(other, item.name)))

    @property
    def maskable(self) -> int:
        """Number of tokens that may be masked: neither special nor unknown tokens."""
        return self.tokens - self.framing - self.special - self.unknown

    @property
    def truncation_share(self) -> float:
        """Share of the tokens that were lost to truncation and dropped documents."""
        return self.tokens_lost / max(1, self.tokens + self.tokens_lost)


def _add_values(left: Any, right: Any) -> Any:
    if isinstance(left, list):
        return [a + b for a, b in zip(left, right, strict=True)]
    if isinstance(left, dict):
        return {name: left.get(name, 0) + right.get(name, 0) for name in sorted(left.keys() | right.keys())}
    return left + right


GROUP = "group"
"""Side column of segments that are parts of examples: the index of a segment in its example, from 0.

A store without it has an example per segment. An example with several segments (a pair of texts) is one unit
of shuffling, packing and cursors; its segments do not attend to each other.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A side column of a store: a value per token, or per segment."""

    name: str
    dtype: str
    is_per_token: bool


SECOND = Column("second", "int32", is_per_token=False)
"""Side column of pairs: the index of the first token of the second text, from which tokens have type 1."""
SCORE = Column("score", "float32", is_per_token=False)
"""Side column of scored texts: the similarity of a document to its example's query; NaN if not scored."""
SUPERVISED = Column("supervised", "uint8", is_per_token=True)
"""Side column that marks the tokens that a model learns to write; the other tokens are prompts."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Segments of one batch: concatenated `tokens` [n], `lengths` int64 [segments].

    `too_long` is (index in the batch, length) of the first document longer than the context if that is
    an error, else None. `columns` are side columns by name, [n] or [segments], as the encoder declares them.
    """

    tokens: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    counts: Counts
    too_long: tuple[int, int] | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def example_lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each example, int64 [examples]."""
        if GROUP not in self.columns:
            return self.lengths
        return np.add.reduceat(self.lengths, first_segments(self.columns[GROUP]))


def first_segments(group: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the first segment of each example, int64 [examples], from the column `GROUP` [segments]."""
    firsts = np.flatnonzero(group == 0)
    assert not len(group) or group[0] == 0, "a batch or a store begins with an example"
    return firsts


class Encoder(Protocol):
    """Interface for tokenizing rows into segments with optional columns of values per token or segment.

    Implementations must be picklable and deterministic.
    """

    @property
    def max_length(self) -> int:
        """Maximum length of a segment in tokens."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """NumPy type of the stored token ids."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Side columns of every encoded batch."""

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch. Raises `ProjectError` for a row that is not an example of the task."""


@dataclass(frozen=True, slots=True)
class SegmentEncoder:
    """Encoder of texts as framed segments of at most `max_length` tokens.

    Attributes:
        is_plain: whether a special token that a text spells, such as "[SEP]", is tokenized as plain text.
            True for rows with parts (pairs, words), of which none may look like two. A text by itself is
            tokenized as in a pipeline: "title [SEP] body" has a separator, unless the tokenizer declares
            `split_special_tokens`.
        ascii_backend: a faster tokenizer with the same tokens for texts in ASCII; None: `backend`.
    """

    backend: Tokenizer
    framing: Framing
    max_length: int
    min_length: int
    long_documents: LongDocuments
    dtype: np.dtype[np.unsignedinteger]
    unknown_id: int | None
    is_maskable: NDArray[np.bool_]
    columns: tuple[Column, ...] = ()
    is_plain: bool = False
    ascii_backend: Tokenizer | None = None

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode the texts of one batch. Raises DAT002 as `token_ids` does."""
        counts = Counts()
        flat = array("I")
        lengths: list[int] = []
        too_long = None
        for index, ids in enumerate(self.token_ids(row[TEXT] for row in rows)):
            length = len(ids) + self.framing.size
            if too_long is None and self.long_documents == "error" and length > self.max_length:
                too_long = (index, length)
            for start, stop in self._kept_bounds(len(ids), counts):
                before, after = self.framing.piece_frame(start, stop, len(ids))
                for part in (before, ids[start:stop], after):
                    flat.extend(part)
                lengths.append(len(before) + stop - start + len(after))
                counts.framing += len(before) + len(after)
        counts.segments, counts.tokens = len(lengths), len(flat)
        tokens = np.frombuffer(flat, np.uint32).astype(self.dtype)
        counts.unknown = self.num_unknown(tokens)
        counts.special = int((~self.is_maskable[tokens]).sum()) - counts.framing - counts.unknown
        return Encoded(tokens, np.array(lengths, np.int64), counts, too_long)

    def num_unknown(self, tokens: NDArray[Any]) -> int:
        """Return how many tokens are the unknown token; 0 if the tokenizer has no such token."""
        return 0 if self.unknown_id is None else int((tokens == self.unknown_id).sum())

    def token_ids(self, texts: Iterable[str]) -> Iterator[Sequence[int]]:
        """Yield the token ids of each text, without framing.

        Raises DAT002 for an id in the data that is beyond the vocabulary.
        """
        for has_ids, group in groupby(texts, lambda text: isinstance(text, TokenText)):
            read = self._stored_ids if has_ids else self._tokenize
            yield from read(group)

    def _stored_ids(self, texts: Iterable[str]) -> Iterator[Sequence[int]]:
        size = len(self.is_maskable)
        for text in texts:
            assert isinstance(text, TokenText)
            ids = self.framing.remove_frame(text.ids())
            if (highest := max(ids, default=0)) >= size:
                message = f"token id {highest:,} is beyond the vocabulary of the tokenizer ({size:,} tokens)"
                raise ProjectError("DAT002", message, TOKENIZER_OF_THE_IDS, "dataset.path")
            yield ids

    def _tokenize(self, texts: Iterable[str]) -> Iterator[Sequence[int]]:
        """Yield the token ids of texts, tokenized in batches of about `TOKENISED_CHARACTERS` characters."""
        pieces = (piece for text in texts for piece in self._pieces_with_end_marks(text))
        ids = array("I")
        for batch in batched(pieces, BATCH_DOCUMENTS, TOKENISED_CHARACTERS, lambda piece: len(piece[0])):
            encodings = self.encode_texts([piece for piece, _ in batch])
            for (_, is_last), encoding in zip(batch, encodings, strict=True):
                ids.extend(encoding.ids)
                if is_last:
                    yield ids
                    ids = array("I")

    def encode_texts(self, texts: list[str], *, has_offsets: bool = False) -> list[Encoding]:
        """Tokenize texts, without framing; faster without offsets."""
        # Set for each call: a pickle, which tokenizing processes receive, leaves it out.
        self.backend.encode_special_tokens = self.is_plain
        if has_offsets:
            return self.backend.encode_batch(texts, add_special_tokens=False)
        if self.ascii_backend is None:
            return self.backend.encode_batch_fast(texts, add_special_tokens=False)
        self.ascii_backend.encode_special_tokens = self.is_plain
        ascii_texts = [text for text in texts if text.isascii()]
        other_texts = [text for text in texts if not text.isascii()]
        ascii_encodings = iter(self.ascii_backend.encode_batch_fast(ascii_texts, add_special_tokens=False))
        other_encodings = iter(self.backend.encode_batch_fast(other_texts, add_special_tokens=False))
        return [next(ascii_encodings if text.isascii() else other_encodings) for text in texts]

    def _pieces_with_end_marks(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield (piece, True for the last one) of a document."""
        length = 0
        for piece in cut_into_pieces(text, self._can_join):
            length += len(piece)
            yield piece, length == len(text)

    def _can_join(self, left: str, right: str) -> bool:
        """Return whether two texts have the same tokens when they are tokenized separately and joined.

        True if the tokenizer splits at the cut; False if, for example, it adds a prefix to each text.
        """
        before, after, whole = (encoding.ids for encoding in self.encode_texts([left, right, left + right]))
        return bool(before + after == whole)

    def _kept_bounds(self, num_tokens: int, counts: Counts) -> Iterable[tuple[int, int]]:
        """Return the bounds of the pieces of a text to keep (all, some or none), and count the text."""
        length = num_tokens + self.framing.size
        counts.documents += 1
        if not num_tokens:
            counts.empty += 1
            return []
        counts.histogram[(length - 1).bit_length()] += 1
        if length < self.min_length:
            counts.too_short += 1
            return []
        if length <= self.max_length:
            return [(0, num_tokens)]
        return self.keep_pieces(num_tokens, self.framing.pieces(num_tokens, self.max_length), counts)

    def keep_pieces(
        self, num_tokens: int, pieces: Iterator[tuple[int, int]], counts: Counts
    ) -> Iterable[tuple[int, int]]:
        """Return the pieces to keep of a text longer than `max_length`, and count the text.

        These are all, the first or none, as `long_documents` states.
        """
        if self.long_documents == "split":
            counts.split += 1
            return pieces
        if self.long_documents == "truncate":
            counts.truncated += 1
            start, stop = next(pieces)
            counts.tokens_lost += num_tokens - stop
            return [(start, stop)]
        counts.dropped += 1
        counts.tokens_lost += num_tokens + self.framing.size
        return []


def segment_encoder(
    bundle: TokenizerBundle,
    max_length: int,
    min_length: int,
    long_documents: LongDocuments,
    framing: Framing | None = None,
    *,
    is_plain: bool = False,
) -> SegmentEncoder:
    """Build the encoder for a tokenizer. `framing` None: as the tokenizer frames a text.

    Raises MOD002 if the context has no space for text.
    """
    framing = framing or bundle.framing
    if max_length <= framing.size:
        raise ProjectError(
            "MOD002",
            f"max_seq_length {max_length} has no space for text next to {framing.size} special tokens",
            "set dataset.max_seq_length to 8 or more",
            "dataset.max_seq_length",
        )
    backend = Tokenizer.from_str(bundle.tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    unknown_id = bundle.tokenizer.unk_token_id
    return SegmentEncoder(
        backend,
        framing,
        max_length,
        min_length,
        long_documents,
        token_dtype(bundle.vocab_size),
        None if unknown_id in framing.frame(()) else unknown_id,
        bundle.is_maskable,
        is_plain=is_plain or bundle.tokenizer.split_special_tokens,
        ascii_backend=ascii_tokenizer(backend),
    )


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest unsigned type that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def batched(
    items: Iterable[Item], max_items: int, max_characters: int, size_of: Callable[[Item], int]
) -> Iterator[tuple[Item, ...]]:
    """Yield batches that end at `max_items` items, or at `max_characters` by the sum of `size_of`."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if len(batch) >= max_items or size >= max_characters:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)
