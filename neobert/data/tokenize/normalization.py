"""Normalization of text by the tokenizers that are trained here, and its description for any tokenizer."""

from __future__ import annotations

from unicodedata import normalize

from tokenizers import Tokenizer, normalizers

from neobert.config.schema import TokenizerConfig

DIAERESIS = "\N{COMBINING DIAERESIS}"


def is_bert_uncased(config: TokenizerConfig) -> bool:
    """Return whether the tokenizer to train normalizes text exactly as bert-base-uncased does.

    Earlier versions trained only this kind, so it stays as it was: a run of theirs trains it again.
    """
    return config.algorithm == "wordpiece" and config.lowercase and config.strip_accents


def normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """Build the normalizer of the tokenizer to train: NFC, and the options of the config.

    WordPiece has white space around each Chinese character, because it splits text into words at white space.
    """
    if is_bert_uncased(config):
        return normalizers.BertNormalizer(lowercase=True)
    changes = normalizers.BertNormalizer(
        clean_text=False,  # it deletes joiners, which distinguish words of Persian and of Indian languages
        handle_chinese_chars=config.algorithm == "wordpiece",
        strip_accents=config.strip_accents,
        lowercase=config.lowercase,
    )
    # The deletion of accents leaves Korean letters decomposed.
    return normalizers.Sequence([changes, normalizers.NFC()])


def described(backend: Tokenizer) -> dict[str, str]:
    """Return what a tokenizer does to case and to accents, measured on samples, and its algorithm."""
    normalized = "Ä" if backend.normalizer is None else backend.normalizer.normalize_str("Ä")
    return {
        "algorithm": type(backend.model).__name__,
        "case": "lowered" if normalized == normalized.lower() else "kept",
        "accents": "kept" if DIAERESIS in normalize("NFD", normalized) else "deleted",
    }
