"""Agreement of a tokenizer with another program's token ids, measured by decoding and tokenizing again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from neobert.config.corpora import corpus_paths, list_corpora
from neobert.config.schema import DatasetConfig, RunConfig
from neobert.config.text_formats import TOKEN_IDS, text_format
from neobert.data.examples import load_examples
from neobert.data.sources.file_listing import list_files, resolve_paths
from neobert.data.sources.token_shards import TokenShard
from neobert.data.tokenize.encoding import SegmentEncoder
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.runfiles.prepared_parts import PartNumber

MAX_DOCUMENTS = 1000


def measure_agreement(
    config: RunConfig, tokenizer: TokenizerBundle, part: PartNumber | None = None
) -> dict[str, int]:
    """Return the counts of `compare_shards` for a run's data; empty without files of token ids.

    A part of K/N compares every N-th file, so that all parts together compare all files.
    """
    encoder, files = load_examples(config).encoder(tokenizer), [*_shard_files(config.dataset)]
    if part is not None:
        files = files[part.number - 1 :: part.of]
    return compare_shards(files, encoder) if isinstance(encoder, SegmentEncoder) else {}


def _shard_files(dataset: DatasetConfig) -> Iterator[Path]:
    places = (
        place for each in list_corpora(dataset) if each.path for place in resolve_paths(corpus_paths(each))
    )
    for place in places:
        files = list_files(place.path) if place.path.is_dir() else (place.path,)
        yield from (file for file in files if text_format(file) == TOKEN_IDS)


def compare_shards(files: Sequence[Path], encoder: SegmentEncoder) -> dict[str, int]:
    """Count the sampled documents that tokenize to the same ids again; empty without files.

    `documents` were compared, `returned` have the same ids after decoding and tokenizing, `marked` have
    markers of the tokenizer inside, where no document begins or ends.
    """
    markers = {*encoder.framing.start, *encoder.framing.end}
    counts = {"documents": 0, "returned": 0, "marked": 0}
    for file in files:
        documents = list(_sample_documents(file, -(-MAX_DOCUMENTS // len(files)), encoder))
        texts = encoder.backend.decode_batch(documents, skip_special_tokens=False)
        again = map(list, encoder.token_ids(texts))
        counts["documents"] += len(documents)
        counts["returned"] += sum(ids == other for ids, other in zip(documents, again, strict=True))
        counts["marked"] += sum(not markers.isdisjoint(ids) for ids in documents)
    return counts if files else {}


def _sample_documents(path: Path, max_documents: int, encoder: SegmentEncoder) -> Iterator[list[int]]:
    """Yield the ids of documents that are evenly distributed in a shard, without their frames."""
    shard = TokenShard.open(path)
    total = len(shard.ends)
    with path.open("rb") as file:
        for number in range(min(max_documents, total)):
            ids = shard.document(file, number * total // min(max_documents, total))
            yield list(encoder.framing.remove_frame(ids.tolist()))
