"""Token ids that a tokenizer adds around a text, and the pieces of a text that exceeds a length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Framing:
    """Ids that frame a text, or the two texts of a pair; each group may be empty.

    Attributes:
        start: before the (first) text.
        between: between the texts of a pair.
        end: after the (last) text.
        frames_pieces: the pieces of a long text are framed like texts, as tokenizers frame overflowing
            tokens; False: `start` is before the first piece and `end` after the last one, as a model of next
            tokens needs them.
    """

    start: Ids = ()
    between: Ids = ()
    end: Ids = ()
    frames_pieces: bool = True

    @property
    def size(self) -> int:
        """Number of ids that a whole text or pair is framed with."""
        return len(self.start) + len(self.between) + len(self.end)

    def frame(self, *texts: Sequence[int]) -> list[int]:
        """Return the ids of one text or of a pair, framed."""
        ids = [*self.start, *texts[0]]
        for text in texts[1:]:
            ids += [*self.between, *text]
        return [*ids, *self.end]

    def remove_frame(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids of a text without `start` before them and `end` after them, where present."""
        start = len(self.start) if self.start and tuple(ids[: len(self.start)]) == self.start else 0
        stop = max(start, len(ids) - len(self.end))
        return ids[start : stop if tuple(ids[stop:]) == self.end else len(ids)]

    def second_start(self, first: Sequence[int]) -> int:
        """Return the index of the first token of the second text of a pair."""
        return len(self.start) + len(first) + len(self.between)

    def piece_frame(self, start: int, stop: int, length: int) -> tuple[Ids, Ids]:
        """Return the ids before and after the piece [start, stop) of a text of `length` tokens."""
        is_first, is_last = self.frames_pieces or start == 0, self.frames_pieces or stop == length
        return self.start if is_first else (), self.end if is_last else ()

    def pieces(self, length: int, max_length: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of the pieces of a text of `length` > 0 tokens: framed, at most `max_length` each.

        `max_length` exceeds `size`. Every piece contains text: if only `end` does not fit, its piece starts
        with the last token of the text.
        """
        start = 0
        while True:
            before, after = self.piece_frame(start, length, length)
            room = max_length - len(before)
            if length - start + len(after) <= room:
                yield start, length
                return
            stop = start + (room - len(after) if self.frames_pieces else min(room, length - start - 1))
            yield start, stop
            start = stop


def truncate_longest_first(parts: Sequence[list[int]], room: int) -> list[list[int]]:
    """Cut one or two texts to `room` tokens in all, from the end of the longer one.

    Equivalent to `truncation="longest_first"` of fast tokenizers: if `room` is odd, the longer text, or the
    second of two equal texts, keeps one token more.
    """
    if len(parts) == 1:
        return [parts[0][:room]]
    first, second = parts
    kept = min(len(first), len(second), room // 2)
    kept = kept if len(first) <= len(second) else room - kept
    return [first[:kept], second[: room - kept]]


def measure_framing(backend: Tokenizer, num_texts: int = 1) -> Framing:
    """Measure the framing that a tokenizer adds to a text, or to a pair (`num_texts` 2).

    The tokenizer must not truncate or pad.
    """
    sample = _sample_text(backend)
    encoding = backend.encode(sample, sample if num_texts == 2 else None)
    ids, texts = encoding.ids, encoding.sequence_ids
    text_indices = [place for place, text in enumerate(texts) if text is not None]
    first, last = text_indices[0], text_indices[-1]
    between = (ids[place] for place in range(first, last) if texts[place] is None)
    return Framing(tuple(ids[:first]), tuple(between), tuple(ids[last + 1 :]))


def _sample_text(backend: Tokenizer) -> str:
    """Return a text that has tokens: "a", else a token of the vocabulary."""

    def has_tokens(text: str) -> bool:
        return bool(backend.encode(text, add_special_tokens=False).ids)

    return "a" if has_tokens("a") else next(filter(has_tokens, backend.get_vocab()))
