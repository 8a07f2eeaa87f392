"""What a tokenizer does to words, read from its file: the same as the library does."""

import unicodedata
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers

from neobert.config.schema import TokenizerConfig
from neobert.plan.normalization import UNCASED, Normalization, read_normalization

OLD_LETTERS = st.characters(categories=("Lu", "Ll", "Lo", "Mn", "Mc")).filter(
    lambda letter: unicodedata.ucd_3_2_0.category(letter) != "Cn"
)
"""Assigned in Unicode 3.2: the library's tables are older than Python's, and it keeps younger marks."""
LETTERS = st.text(OLD_LETTERS, min_size=1, max_size=6)


@pytest.mark.parametrize("lowers", [False, True])
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_the_file_of_a_trained_tokenizer_shows_its_keys(tmp_path, algorithm, deletes, lowers):
    from neobert.data.tokenize.trained import train_tokenizer  # it imports transformers

    config = TokenizerConfig(vocab_size=300, algorithm=algorithm, lowercase=lowers, strip_accents=deletes)
    trained = train_tokenizer(["some text"], config)
    trained.save_pretrained(tmp_path)
    found = read_normalization(TokenizerConfig(path=str(tmp_path)))
    assert found == read_normalization(config) == Normalization(lowers, deletes)
    as_the_library = trained.backend_tokenizer.normalizer.normalize_str

    @given(LETTERS)
    def check(word: str) -> None:
        assert found.apply(word) == normalize("NFC", as_the_library(word)).replace(" ", "")

    check()


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (None, (False, False)),
        (normalizers.NFKC(), (False, False)),
        (normalizers.BertNormalizer(), (True, True)),
        (normalizers.BertNormalizer(strip_accents=False), (True, False)),
        (normalizers.BertNormalizer(lowercase=False), (False, False)),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), (False, True)),
        (normalizers.Lowercase(), (True, False)),
    ],
)
def test_normalizers_of_other_tokenizers(tmp_path, normalizer, expected):
    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.save(str(tmp_path / "tokenizer.json"))
    assert read_normalization(TokenizerConfig(path=str(tmp_path))) == Normalization(*expected)


def test_without_a_file_only_a_well_known_tokenizer_is_known(tmp_path):
    assert read_normalization(TokenizerConfig(name="bert-base-uncased")) == UNCASED
    assert read_normalization(TokenizerConfig(path=str(tmp_path))) is None
    for content in ("{", "[]", '{"normalizer": {"type": "Sequence", "normalizers": [3, null]}}'):
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        assert read_normalization(TokenizerConfig(path=str(tmp_path))) in (None, Normalization(False, False))
