"""Step of a datatrove pipeline that writes its documents as prepared text.

Readers, filters, deduplication and executors are datatrove's; the tokens and their files are as
`neobert-launch data prepare` writes them. Each task of the pipeline writes a part, and
`neobert-launch data join` joins the parts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from neobert.config import from_dict, to_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.sources.corpus import Corpus
from neobert.data.sources.parts import HashShare
from neobert.data.sources.readers import IndexedSource
from neobert.data.sources.rows import TEXT, Row, check_plain_text
from neobert.data.sources.text_files import replace_surrogates
from neobert.data.store.block_record import sum_counts
from neobert.data.store.block_writer import BlockRows, SplitRows
from neobert.data.store.build import PreparationRequest
from neobert.data.store.part_writer import PartWriter
from neobert.data.tokenize.encoding_pool import PARALLELISM_ENV
from neobert.data.tokenize.tokenizers import is_trained, load_tokenizer, refuse_shared_padding
from neobert.errors import ProjectError
from neobert.runfiles.prepared_parts import PartNumber
from neobert.tasks.specs import spec_of

try:
    from datatrove.pipeline.base import PipelineStep
except ModuleNotFoundError:
    PipelineStep = object

INSTALL = "pip install 'datatrove[io]>=0.10.1'"
LABEL = "the documents of the pipeline"


class TokenStoreWriter(PipelineStep):  # type: ignore[misc]
    """Writer of the documents of a pipeline as prepared text: `part-K-of-N` for task K - 1 of N.

    `config` belongs to the run that trains on the text; `dataset.validation_split` is its evaluation text.
    A task that is run again replaces its part.
    """

    name = "neobert-launch"
    type = "WRITER"

    def __init__(self, config: RunConfig, output_folder: str | Path) -> None:
        if PipelineStep is object:
            raise ModuleNotFoundError(f"datatrove is not installed: {INSTALL}", name="datatrove")
        super().__init__()
        _check_config(config)
        # The executor writes the step as JSON, and sends it to processes that start elsewhere.
        self.config, self.output_folder = to_dict(config), str(Path(output_folder).absolute())

    def run(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        """Write the part of one task; no document is passed to a later step."""
        # A task is one of several on a machine: the executor decides how many cores it has.
        os.environ.setdefault(PARALLELISM_ENV, "false")
        request = _build_request(from_dict(self.config))
        assert request.tokenizer is not None
        request.tokenizer.tokenizer.model_max_length = segment_length(request.config)
        writer = PartWriter(
            Path(self.output_folder),
            PartNumber(rank + 1, world_size),
            request.content(),
            request.tokenizer,
            request.examples.encoder(request.tokenizer),
            request.corpus.train.rows,
        )

        def check(manifest: dict[str, Any]) -> None:
            train = sum_counts(manifest["splits"]["train"]["blocks"])
            if train.segments:
                request.examples.check(LABEL, train)

        shutil.rmtree(writer.folder, ignore_errors=True)
        with self.track_time(unit="part"):
            manifest = writer.write(_build_splits(data or (), request.corpus, rank, world_size), check)
        for split in manifest["splits"].values():
            self.stat_update("tokens", value=split["tokens"], unit="part")


def _check_config(config: RunConfig) -> None:
    """Raise `ProjectError` for a config whose text a pipeline cannot provide."""
    check_plain_text(LABEL, spec_of(config).rows(config))
    dataset = config.dataset
    for key in ("streaming", "eval_samples", "eval_split", "mixture"):
        if getattr(dataset, key):
            message = f"dataset.{key} does not apply to {LABEL}"
            hint = f"remove dataset.{key}"
            if key.startswith("eval_"):
                hint = f"replace dataset.{key} with dataset.validation_split, a share of these documents"
            raise ProjectError("DAT001", message, hint, f"dataset.{key}")
    if is_trained(config.tokenizer):
        message = "parts need an existing tokenizer, but this run would train one on the whole text"
        raise ProjectError("DAT001", message, "set tokenizer.path to a tokenizer", "tokenizer.path")


def _build_request(config: RunConfig) -> PreparationRequest:
    """Return the request of a text that is identified only by its documents."""
    spec = spec_of(config)
    documents = IndexedSource(LABEL, lambda _, __: (), lambda: 0, lambda: "datatrove", spec.rows(config))
    share = config.dataset.validation_split
    corpus = Corpus(documents, None, config.dataset)
    if share is not None:
        training, evaluation = (HashShare(documents, share, is_evaluation=each) for each in (False, True))
        corpus = Corpus(training, evaluation, config.dataset)
    tokenizer = load_tokenizer(config.tokenizer, roles=spec.roles)
    refuse_shared_padding(tokenizer, str(config.tokenizer.path or config.tokenizer.name))
    return PreparationRequest(config, corpus, tokenizer, is_parted=True)


def _build_splits(data: Iterable[Any], corpus: Corpus, rank: int, world_size: int) -> dict[str, SplitRows]:
    """Return the splits of a task. The training text is first: reading it collects the evaluation text."""
    held_out: list[Row] = []

    def training_rows() -> Iterator[Row]:
        for document in data:
            row = {TEXT: replace_surrogates(document.text)}
            if isinstance(corpus.evaluation, HashShare) and corpus.evaluation.includes(row):
                held_out.append(row)
            else:
                yield row

    def as_split(rows: Iterable[Row]) -> SplitRows:
        return SplitRows(world_size, [BlockRows(rank, f"task {rank}", rows, LABEL)])

    splits = {"train": as_split(training_rows())}
    return splits if corpus.evaluation is None else splits | {"eval": as_split(held_out)}
