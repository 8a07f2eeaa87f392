"""Data layer of contrastive training: a query, its document and hard negatives as segments of an example."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.targets import IGNORED, TargetRule, Targets
from neobert.data.examples import Examples
from neobert.data.sources.rows import TEXT, Row
from neobert.data.store.segment_store import Segments
from neobert.data.tokenize.encoding import GROUP, SCORE, Column, Counts, Encoded
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.plurals import counted
from neobert.tasks.contrastive.rows import (
    NUM_LEFT_OUT,
    SCORES,
    reads_scores,
    row_format,
    row_negatives,
    row_positives,
)
from neobert.tasks.contrastive.section import CONTRASTIVE
from neobert.tasks.pretraining.examples import Documents
from neobert.tasks.row_encoder import RowEncoder
from neobert.tasks.stored_labels import PLAIN, labelled_text_encoder, refuse_split

log = logging.getLogger(__name__)

NO_SCORE, SCORED_PAIR = float("nan"), 2
"""Score of a query, and number of texts of a pair that has one score."""
PLACE = Column(GROUP, "uint8", is_per_token=False)
ONE_TEXT, NEGATIVES_LEFT_OUT = "rows_of_one_text", "negatives"
"""Kinds of `Counts.left_out`."""


@dataclass(frozen=True)
class Pairs:
    """Data layer of pairs: a row becomes an example of two texts or more."""

    config: RunConfig

    def encoder(self, tokenizer: TokenizerBundle) -> PairEncoder:
        """Build the encoder, with the run's prompts. Raises DAT020 if long texts would be split."""
        refuse_split(self.config, "each text has one vector")
        section = CONTRASTIVE.read_section(self.config)
        texts = labelled_text_encoder(self.config, tokenizer, tokenizer.framing)
        prompts = section.query_prompt or "", section.document_prompt or ""
        return PairEncoder(texts, *prompts, reads_scores(self.config))

    def target_rule(self, tokenizer: TokenizerBundle) -> QueryTargets:
        """Return the target rule that marks the queries and, with a masked-LM loss, masks tokens."""
        if CONTRASTIVE.read_section(self.config).masked_lm_weight:
            return QueryTargets(Documents(self.config).target_rule(tokenizer))
        return QueryTargets()

    def synthetic_columns(
        self,
        lengths: NDArray[np.int64],
        generator: np.random.Generator,
    ) -> Mapping[str, NDArray[Any]]:
        """Return examples of two texts, with scores if the run reads them."""
        positions = (np.arange(len(lengths)) % 2).astype(PLACE.dtype)
        if not reads_scores(self.config):
            return {GROUP: positions}
        scores = np.where(positions, generator.random(len(lengths)), np.nan).astype(SCORE.dtype)
        return {GROUP: positions, SCORE.name: scores}

    def check(self, label: str, counts: Counts) -> None:
        """Warn about rows that lack a query or a document."""
        for number, lacks in (
            (counts.empty, "has no text"),
            (counts.left_out.get(ONE_TEXT, 0), "has only one of two texts"),
        ):
            if number:
                log.warning("%s: %s left out: each %s", label, counted(number, "row"), lacks)

    def identity(self) -> dict[str, Any]:
        """Return the settings of the texts that affect the prepared data, JSON-serializable."""
        section = CONTRASTIVE.read_section(self.config)
        prompts = [section.query_prompt, section.document_prompt]
        scored = {"reads_scores": True} if reads_scores(self.config) else {}
        scored |= {"doubles_texts": True} if section.positives == "dropout" else {}
        return row_format(self.config).identity() | {"task": "pairs", "prompts": prompts} | PLAIN | scored


@dataclass(frozen=True, slots=True)
class PairEncoder(RowEncoder):
    """Encoder of rows as one segment for the query and one per document, the positive first."""

    query_prompt: str
    document_prompt: str
    has_scores: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        """Side columns: the index of a text in its example and, if rows have scores, its score."""
        return (PLACE, SCORE) if self.has_scores else (PLACE,)

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch of rows, an example per positive; rows without a query or a positive are left out.

        With `dataset.long_documents: drop`, an example with a long query or positive is left out too, and a
        long negative is left out of its example.
        """
        counts, too_long = Counts(), None
        segments: list[list[int]] = []
        positions: list[int] = []
        scores: list[float] = []
        rows = list(rows)
        examples = [(at, texts) for at, row in enumerate(rows) for texts in self._prompted_texts(row, counts)]
        texts_in_order = (text for _, texts in examples for text in texts)
        ids = iter(list(each) for each in self.texts.token_ids(texts_in_order))
        for number, texts in examples:
            tokens = [next(ids) for _ in texts]
            longest = max(map(len, tokens), default=0) + self.texts.framing.size
            if longest > self.max_length and self.texts.long_documents == "error":
                too_long = too_long or (number, longest)
            own = (NO_SCORE, *rows[number].get(SCORES, ()))
            kept = self._fit_texts(tokens, counts)
            if len(own) > SCORED_PAIR and len(kept) == SCORED_PAIR:  # a teacher's score of one document
                kept = {}
                counts.dropped += 1
            segments += [self.texts.framing.frame(each) for each in kept.values()]
            positions += range(len(kept))
            scores += [own[place] if len(own) > 1 else NO_SCORE for place in kept]
        lengths = [len(each) for each in segments]
        flat = np.fromiter((token for each in segments for token in each), self.dtype, sum(lengths))
        counts.segments, counts.tokens = len(lengths), len(flat)
        counts.framing = self.texts.framing.size * len(lengths)
        counts.unknown = self.texts.num_unknown(flat)
        columns = {GROUP: np.array(positions, PLACE.dtype)}
        if self.has_scores:
            columns[SCORE.name] = np.array(scores, SCORE.dtype)
        return Encoded(flat, np.array(lengths, np.int64), counts, too_long, columns)

    def _prompted_texts(self, row: Row, counts: Counts) -> Iterator[list[str]]:
        """Yield query and documents of each pair of a row, with prompts; none if a side is empty."""
        counts.documents += 1
        query, positives = row[TEXT], row_positives(row)
        if not query.strip() or not positives:
            if query.strip() or positives:
                _count(counts, ONE_TEXT, 1)
            else:
                counts.empty += 1
            return
        _count(counts, NEGATIVES_LEFT_OUT, row.get(NUM_LEFT_OUT, 0))
        for positive in positives:
            documents = [positive, *row_negatives(row)]
            yield [self.query_prompt + query, *(self.document_prompt + each for each in documents)]

    def _fit_texts(self, texts: Sequence[list[int]], counts: Counts) -> dict[int, list[int]]:
        """Return the kept texts of an example by index, truncated if `dataset.long_documents` is truncate.

        Else a long negative is left out, and a long query or positive drops the example: empty.
        """
        room = self.max_length - self.texts.framing.size
        is_long = [len(each) > room for each in texts]
        if texts:
            counts.histogram[(max(map(len, texts)) + self.texts.framing.size - 1).bit_length()] += 1
        if self.texts.long_documents == "truncate":
            counts.truncated += any(is_long)
            counts.tokens_lost += sum(max(0, len(each) - room) for each in texts)
            return {place: each[:room] for place, each in enumerate(texts)}
        if any(is_long[:2]):
            counts.dropped += 1
            counts.tokens_lost += sum(map(len, texts))
            return {}
        counts.tokens_lost += sum(len(each) for each in texts if len(each) > room)
        return {place: each for place, each in enumerate(texts) if len(each) <= room}


def _count(counts: Counts, kind: str, number: int) -> None:
    if number:
        counts.left_out[kind] = counts.left_out.get(kind, 0) + number


@dataclass(frozen=True, slots=True)
class QueryTargets:
    """Target rule: the first text of each example, which is a query, has the label 0; others are ignored.

    Attributes:
        masking: masks a copy of the tokens; None: no masking.
    """

    masking: TargetRule | None = None

    @property
    def labels_tokens(self) -> bool:
        """Return False: labels are per text."""
        return False

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:
        """Return the unchanged tokens, a label per text, and the tokens and labels of `masking`."""
        masked = None if self.masking is None else self.masking.targets(segments, epoch=epoch, seed=seed)
        return Targets(segments.ids, np.where(segments.columns[GROUP] == 0, 0, IGNORED), masked)


def build_examples(config: RunConfig) -> Examples:
    """Return the data layer of a contrastive run."""
    return Pairs(config)
