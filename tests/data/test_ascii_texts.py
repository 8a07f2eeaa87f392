"""A tokenizer of texts in ASCII has the tokens of the whole one, or is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from neobert.data.sources.rows import without_whitespace_and_case
from neobert.data.tokenize.ascii_texts import ascii_tokenizer

WORDS = [
    "[UNK]",
    "[MASK]",
    "cafe",
    "Cafe",
    "\u00c9",
    "ba",
    "##ba",
    "go",
    ".",
    "\u4f60",
    *map(chr, range(33, 127)),
]
NORMALIZERS = {
    "bert": normalizers.BertNormalizer(),
    "cased": normalizers.BertNormalizer(lowercase=False, strip_accents=True),
    "sequence": normalizers.Sequence(
        [
            normalizers.NFD(),
            normalizers.Lowercase(),
            normalizers.StripAccents(),
            normalizers.Replace("go", "ba"),
        ]
    ),
    "forms": normalizers.NFKC(),
}


def tokenizer(normalizer: normalizers.Normalizer | None) -> Tokenizer:
    backend = Tokenizer(
        models.WordPiece({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.normalizer = normalizer
    backend.add_special_tokens(["[MASK]"])
    return backend


@pytest.mark.parametrize("name", NORMALIZERS)
def test_texts_in_ascii_have_the_same_tokens(name):
    whole = tokenizer(NORMALIZERS[name])
    faster = ascii_tokenizer(whole)
    assert faster is not None
    assert faster.to_str() != whole.to_str()

    @given(st.text(st.characters(max_codepoint=127)) | st.lists(st.sampled_from(WORDS)).map(" ".join))
    def check(text: str) -> None:
        if text.isascii():
            assert faster.encode(text).ids == whole.encode(text).ids

    check()


@pytest.mark.parametrize("normalizer", [None, normalizers.Lowercase(), normalizers.Replace("a", "b")])
def test_there_is_none_without_a_step_to_leave_out(normalizer):
    assert ascii_tokenizer(tokenizer(normalizer)) is None


def test_an_added_token_with_an_accent_is_found_in_ascii_by_the_whole_normalizer():
    whole = tokenizer(NORMALIZERS["bert"])
    whole.add_tokens([AddedToken("ba caf\u00e9", normalized=True)])
    assert len(whole.encode("ba cafe").ids) == 1
    assert ascii_tokenizer(whole) is None


@given(st.text(st.characters(max_codepoint=127)))
def test_the_layout_of_ascii_is_removed_as_that_of_other_texts(text):
    assert without_whitespace_and_case(text) + "\u00e9" == without_whitespace_and_case(text + "\u00e9")
