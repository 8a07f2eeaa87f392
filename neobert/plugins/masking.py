"""Target rule of a masking plug-in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import DataCollatorConfig
from neobert.data.batches.masking import EVALUATION_EPOCH
from neobert.data.batches.stateless_random import stream_key
from neobert.data.batches.targets import IGNORED, Targets
from neobert.data.store.segment_store import Segments
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.plugins.interfaces import MaskingContext
from neobert.plugins.loading import Plugin

_STREAM = 0x706C7567

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PluggedMasking:
    """Masks each document by a user-defined function.

    The random numbers of a document depend on the seed, the epoch and its sample id: its targets are the same
    in any microbatch, rank and session.
    """

    plugin: Plugin
    tokenizer: TokenizerBundle
    collator: DataCollatorConfig
    training: MaskingContext = field(init=False)
    evaluation: MaskingContext = field(init=False)

    def __post_init__(self) -> None:
        tokens = self.tokenizer.tokenizer.convert_ids_to_tokens(range(self.tokenizer.num_tokens))
        unused = [""] * (self.tokenizer.vocab_size - len(tokens))
        texts = (*(each or "" for each in tokens), *unused)
        rate, in_evaluations = self.collator.mlm_probability, self.collator.mlm_probability_eval
        training = MaskingContext(self.tokenizer.mask_id, self.tokenizer.random_ids, rate, texts)
        object.__setattr__(self, "training", training)
        evaluation = replace(training, probability=rate if in_evaluations is None else in_evaluations)
        object.__setattr__(self, "evaluation", evaluation)

    @property
    def labels_tokens(self) -> bool:
        """True, since labels are per token."""
        return True

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:
        """Return the function's results for all documents. Raises `PluginError` for an invalid result."""
        context = self.evaluation if epoch == EVALUATION_EPOCH else self.training
        key, ends = stream_key(_STREAM, seed, epoch), np.cumsum(segments.lengths)
        inputs, labels = segments.ids.copy(), np.full_like(segments.ids, IGNORED)
        for sample, start, end in zip(segments.samples, ends - segments.lengths, ends, strict=True):
            ids = segments.ids[start:end].copy()
            # The numbers of the bit generator are fixed by numpy's policy for all versions.
            words = np.array([key, int(sample) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
            rng = np.random.Generator(np.random.Philox(key=words))
            result = self.plugin(ids, ~self.tokenizer.is_maskable[ids], rng, context)
            inputs[start:end], labels[start:end] = self._valid_targets(result, end - start)
        return Targets(inputs, labels)

    def _valid_targets(self, result: Any, length: int) -> tuple[Ids, Ids]:
        """Return inputs and labels. Raises `PluginError` unless they are integers [T] in the vocabulary."""
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.plugin.invalid_result_error(f"returned {type(result).__name__}, not (inputs, labels)")
        for name, values in zip(("inputs", "labels"), result, strict=True):
            if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
                raise self.plugin.invalid_result_error(f"returned {name} that are not an array of integers")
            if values.shape != (length,):
                raise self.plugin.invalid_result_error(
                    f"returned {name} of shape {values.shape} for {length} tokens"
                )
            legal = (values >= 0) & (values < self.tokenizer.num_tokens)
            if name == "labels":
                legal |= values == IGNORED
            if not legal.all():
                worst = values[~legal][0]
                raise self.plugin.invalid_result_error(
                    f"returned {name} with id {worst}, which is not in the vocabulary"
                )
        return result
