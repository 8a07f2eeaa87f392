"""Synthetic documents: random words, with lengths as in web text, identical on every machine."""

from __future__ import annotations

from hashlib import sha256
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.examples import load_examples
from neobert.data.store.build import TOKENIZER_FOLDER
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.token_store import TokenStore
from neobert.data.tokenize.encoding import Column, Counts, Encoded
from neobert.data.tokenize.tokenizers import TokenizerBundle, build_bundle
from neobert.data.tokenize.trained import marker_template
from neobert.errors import ProjectError
from neobert.families.table import max_row_length
from neobert.plan.vocabulary import VOCAB_MULTIPLE, num_embedding_rows

SEED = 0
MEDIAN_TOKENS, SIGMA = 150, 0.86
"""Parameters of a lognormal distribution of document lengths with a mean of about 217 tokens."""
MAX_TOKENS = 8_000_000
MICROBATCHES = 64
ROLES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def synthesize_data(config: RunConfig, folder: Path) -> PreparedData:
    """Generate documents for up to 64 microbatches, within the length limits of the config.

    Like other text, they are shuffled and masked differently in every epoch. Raises `ProjectError` MOD002 if
    the model has too few embedding rows for a tokenizer.
    """
    tokenizer = _synthetic_tokenizer(config)
    store = _synthetic_store(config, tokenizer)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    fingerprint = sha256(store.offsets.tobytes() + store.tokens.tobytes()).hexdigest()
    return PreparedData(folder, store, None, tokenizer, fingerprint, {})


def draw_lengths(config: RunConfig, shortest: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw document lengths, of at least `shortest` tokens, within the length limits of the config."""
    capacity = config.trainer.per_device_train_batch_size * max_row_length(config)
    wanted = min(MICROBATCHES * capacity, max(MAX_TOKENS, 2 * capacity))
    shortest = max(config.dataset.min_length, shortest)
    count = wanted // shortest + 1
    drawn = np.exp(generator.normal(log(MEDIAN_TOKENS), SIGMA, size=min(count, wanted)))
    lengths = np.clip(np.rint(drawn), shortest, segment_length(config)).astype(np.int64)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), wanted)) + 1]


def _synthetic_store(config: RunConfig, tokenizer: TokenizerBundle) -> TokenStore:
    generator, framing = np.random.default_rng(SEED), tokenizer.framing
    lengths = draw_lengths(config, framing.size + 1, generator)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    # A skewed distribution of words, so that there is something to learn.
    ranks = (len(tokenizer.random_ids) * generator.random(int(offsets[-1])) ** 3).astype(np.int64)
    tokens = tokenizer.random_ids[ranks].astype(np.uint32)
    tokens[offsets[:-1]], tokens[offsets[1:] - 1] = *framing.start, *framing.end
    columns = load_examples(config).synthetic_columns(lengths, generator)
    declared = [Column(name, str(each.dtype), len(each) == len(tokens)) for name, each in columns.items()]
    return TokenStore.from_batches([Encoded(tokens, lengths, Counts(), columns=columns)], declared)


def _synthetic_tokenizer(config: RunConfig) -> TokenizerBundle:
    """Build a word-level tokenizer whose size is the model's embedding rows, rounded down to 128.

    Raises `ProjectError` MOD002 if the model has fewer than 128 rows.
    """
    rows = num_embedding_rows(config)
    size = rows // VOCAB_MULTIPLE * VOCAB_MULTIPLE
    if size == 0:
        raise ProjectError(
            "MOD002",
            f"model.vocab_size is {rows}, but the smallest tokenizer has {VOCAB_MULTIPLE} tokens",
            f"set model.vocab_size to at least {VOCAB_MULTIPLE}, or to null",
            "model.vocab_size",
        )
    special = [*ROLES.values(), "[MASK]"]
    words = (f"w{number}" for number in range(size - len(special)))
    vocabulary = {word: number for number, word in enumerate((*special, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=ROLES["unk_token"]))
    tokenizer.post_processor = marker_template(ROLES["cls_token"], ROLES["sep_token"], tokenizer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES, mask_token="[MASK]")
    return build_bundle(fast, "synthetic documents")
