"""The tokenizer that a run trains on its text if its config names none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unicodedata import normalize

from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.byte_level_bpe import train_bpe
from neobert.data.tokenize.training_text import head_of_texts, is_bert_uncased
from neobert.data.tokenize.wordpiece import train_wordpiece
from neobert.plan.tokenizer_contents import ROLE_SPELLINGS
from neobert.plan.vocabulary import BERT_SIZE
from neobert.runfiles.chat_template import read_template

ALGORITHMS = {"wordpiece": train_wordpiece, "bpe": train_bpe}
DIAERESIS = "\N{COMBINING DIAERESIS}"


def train_tokenizer(
    texts: Iterable[str], config: TokenizerConfig, *, is_causal: bool = False
) -> PreTrainedTokenizerFast:
    """Train the tokenizer of a config on texts: the same texts make the same tokenizer.

    For a causal model, the first and last token are named bos and eos, and no text ends with one, since the
    model continues it. Raises TOK004 for a size that is too small for words, DAT004 if there is no text.
    """
    if iter(texts) is texts:
        texts = list(head_of_texts(texts))
    backend = ALGORITHMS[config.algorithm](texts, config, trained_vocab_size(config))
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    roles = {role: names[0] for role, names in ROLE_SPELLINGS.items() if names[0] in special}
    template = marker_template(roles["cls_token"], "" if is_causal else roles["sep_token"], backend)
    if is_causal:
        roles |= {"bos_token": roles["cls_token"], "eos_token": roles["sep_token"]}
    steps = (backend.post_processor, template)
    backend.post_processor = template if steps[0] is None else processors.Sequence(list(steps))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def trained_vocab_size(config: TokenizerConfig) -> int:
    """Return tokenizer.vocab_size, or the size of BERT's vocabulary if it is null."""
    return config.vocab_size or BERT_SIZE


def trained_identity(config: TokenizerConfig) -> dict[str, Any]:
    """Return the settings that the tokenizer to train depends on, JSON-serializable.

    The values of earlier versions are left out, so that text prepared by them is still found.
    """
    size: dict[str, Any] = {config.algorithm: trained_vocab_size(config)}
    if config.chat_template is not None:
        size["chat_template"] = read_template(config.chat_template)
    if is_bert_uncased(config):
        return size
    return size | {"lowercase": config.lowercase, "strip_accents": config.strip_accents}


def describe_tokenizer(backend: Tokenizer) -> dict[str, str]:
    """Return a tokenizer's algorithm, and its treatment of case and accents, measured on one letter."""
    normalized = "Ä" if backend.normalizer is None else backend.normalizer.normalize_str("Ä")
    return {
        "algorithm": type(backend.model).__name__,
        "case": "lowered" if normalized == normalized.lower() else "kept",
        "accents": "kept" if DIAERESIS in normalize("NFD", normalized) else "deleted",
    }


def marker_template(start: str, end: str, backend: Tokenizer) -> processors.TemplateProcessing:
    """Build the post-processor for `start A end` and, for a pair of sequences, `start A end B end`.

    Without an end, for `start A` and `start A B`.
    """
    return processors.TemplateProcessing(
        single=f"{start} $A {end}".strip(),
        pair=f"{start} $A {end} $B:1 {end}:1" if end else f"{start} $A $B:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (start, end) if token],
    )
