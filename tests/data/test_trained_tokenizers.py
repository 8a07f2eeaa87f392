"""Tokenizers that are trained here: what they keep of a text, and that they are always the same."""

import shutil
import time
from collections import Counter
from unicodedata import normalize

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize import training_text
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.data.tokenize.trained import describe_tokenizer, train_tokenizer, trained_identity
from neobert.data.tokenize.training_text import normalizer
from neobert.data.tokenize.wordpiece import SPECIAL_TOKENS
from neobert.errors import ProjectError
from tests.data.conftest import sentences
from tests.refusals import refusal_of

ALGORITHMS = ("wordpiece", "bpe")
UNCASED = {"lowercase": True, "strip_accents": True}
TEXTS = {
    "Hindi": "हिन्दी में लिखा हुआ मैं म हुआ हआ की कि क",
    "Thai": "ปา ป่า ป้า ข่าว ขาว ข้าว ใกล้ ไกล ภาษาไทยเขียนติดกัน",
    "Vietnamese": "ma má mà mả mã mạ Việt Nam có thanh điệu",
    "Hebrew": "שָׁלוֹם שלום סֵפֶר סַפָּר",
    "Arabic": "كَتَبَ كُتُب كتب مدرسة",
    "Persian": "می‌خواهم میخواهم کتاب‌ها کتابها",
    "Japanese": "ハハ ババ パパ がか プログラムを書く",
    "Korean": "나는 학교에 간다 값 갑",
    "Chinese": "中文句子没有空格",
    "French": "pêche péché pèche Été été où ou",
    "Polish": "Żółć żółć łaska laska są sa",
    "Turkish": "İstanbul istanbul ılık ilik kar kâr",
    "German": "schon schön Schön Masse Maße",
    "Russian": "все всё Мир мир",
    "Bengali": "বাংলা কি কী কল কাল",
    "Tamil": "தமிழ் கல் கால் கல",
    "English": "Polish polish do not don't rose rosé",
}


def trained(texts: list[str], size: int = 2000, **keys: object) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts, TokenizerConfig(vocab_size=size, **keys))


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def decoded(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    return tokenizer.decode(ids_of(tokenizer, text))


def without_space(text: str) -> str:
    """Leave white space out, as Unicode defines it; Python counts four control characters to it."""
    return "".join(letter for letter in text if not letter.isspace() or letter in "\x1c\x1d\x1e\x1f")


def test_a_trained_wordpiece(tokenizer_dir):
    found = load_tokenizer(TokenizerConfig(path=str(tokenizer_dir)))
    assert isinstance(found.tokenizer, PreTrainedTokenizerFast)
    assert (found.vocab_size, found.num_tokens) == (128, 83)
    ids = found.tokenizer("bala gola").input_ids
    assert [ids[0], ids[-1]] == [found.tokenizer.cls_token_id, found.tokenizer.sep_token_id]
    assert found.tokenizer.decode(ids[1:-1]) == "bala gola"
    assert found.tokenizer("bala", "gola").input_ids.count(found.tokenizer.sep_token_id) == 2
    assert found.tokenizer.convert_ids_to_tokens(list(range(5))) == list(SPECIAL_TOKENS)
    described_as = {"algorithm": "WordPiece", "case": "kept", "accents": "kept"}
    assert found.summary().items() >= described_as.items()


def test_a_trained_bpe():
    found = load_tokenizer(TokenizerConfig(algorithm="bpe", vocab_size=700), sentences(200))
    tokenizer = found.tokenizer
    assert tokenizer.convert_ids_to_tokens(list(range(4))) == ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.unk_token_id is None, "no text is unknown to it"
    assert found.summary().items() >= {"algorithm": "BPE", "case": "kept", "accents": "kept"}.items()
    masked = tokenizer("gola [MASK] bala", return_offsets_mapping=True)
    tokens = ["[CLS]", "Ġgola", "[MASK]", "Ġbala", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(masked.input_ids) == tokens
    assert masked.offset_mapping == [(0, 0), (0, 4), (5, 11), (12, 16), (0, 0)]
    assert tokenizer("bala", "gola").input_ids.count(found.tokenizer.sep_token_id) == 2
    words = tokenizer(["gola", "bala"], is_split_into_words=True, add_special_tokens=False).input_ids
    assert words == ids_of(tokenizer, "gola bala"), "a word has the same tokens at every place"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_text_is_kept_in_every_language(algorithm, form):
    tokenizer = trained([normalize(form, text) for text in TEXTS.values()], algorithm=algorithm)
    for language, text in TEXTS.items():
        shown = decoded(tokenizer, normalize(form, text))
        assert without_space(shown) == without_space(normalize("NFC", text)), language
        words = {normalize("NFC", word) for word in text.split()}
        assert len({tuple(ids_of(tokenizer, normalize(form, word))) for word in words}) == len(words), (
            language
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=300), min_size=1))
def test_any_text_is_kept(algorithm, texts):
    assume(not any(token in text for text in texts for token in SPECIAL_TOKENS))  # which stay what they are
    texts = [*texts, "a"]
    tokenizer = trained(texts, 30_000, algorithm=algorithm)
    for text in (normalize("NFC", text) for text in texts):
        shown = decoded(tokenizer, text)
        if algorithm == "wordpiece":
            assert without_space(shown) == without_space(text)
        else:
            assert shown == (text if text.startswith(" ") or not text else f" {text}")


@given(st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=100))
def test_no_text_is_unknown_to_bpe(text):
    assert decoded(ENGLISH_BPE, text).removeprefix(" ") == normalize("NFC", text).removeprefix(" ")


ENGLISH_BPE = trained([TEXTS["English"]], 300, algorithm="bpe")


def test_a_word_of_hindi_is_one_word_to_bpe():
    """The pattern of GPT-2 splits it at each vowel sign, so that its tokens are parts of letters."""
    tokenizer = trained([TEXTS["Hindi"]] * 3, algorithm="bpe")
    assert [len(ids_of(tokenizer, word)) for word in TEXTS["Hindi"].split()] == [1] * 11


def test_a_clause_of_thai_has_no_spaces_and_is_known_to_wordpiece():
    clause = "ภาษาไทยเขียนติดกัน" * 10
    tokenizer = trained([clause])
    assert tokenizer.unk_token_id not in ids_of(tokenizer, clause)


def test_korean_and_chinese_have_more_letters_than_other_scripts():
    texts = ["".join(chr(0xAC00 + 7 * (i + j) % 1500) for j in range(20)) for i in range(1500)]
    tokenizer = trained(texts, 30_000)
    assert sum(tokenizer.unk_token_id in ids_of(tokenizer, text) for text in texts) < 20


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_keys_change_case_and_accents(algorithm, lowercase, strips):
    keys = {"algorithm": algorithm, "lowercase": lowercase, "strip_accents": strips}
    tokenizer = trained([" ".join(TEXTS.values())], **keys)
    texts = {"Été": "Été", "학교": "학교", "में": "में"}
    if strips:
        texts |= {"Été": "Ete", "में": "म"}
    if lowercase:
        texts["Été"] = texts["Été"].lower()
    if lowercase and strips and algorithm == "wordpiece":
        texts["학교"] = normalize("NFD", "학교")  # as bert-base-uncased, which stays as it is
    assert {text: decoded(tokenizer, text).strip() for text in texts} == texts
    found = describe_tokenizer(tokenizer.backend_tokenizer)
    assert (found["case"] == "lowered", found["accents"] == "deleted") == (lowercase, strips)


def test_the_uncased_wordpiece_is_that_of_earlier_versions():
    """Its digest is in checkpoints: runs of theirs train it again if their cache is lost."""
    found = load_tokenizer(TokenizerConfig(vocab_size=300, **UNCASED), list(TEXTS.values()))
    assert found.digest == "401623005663cf6bbb58221c6115d550676668a91e27c095bea5290fb1b957eb"


def test_each_value_of_a_key_trains_another_tokenizer():
    """The name of the cache folder, and the digest that a checkpoint is compared by."""
    configs = [
        TokenizerConfig(vocab_size=600, algorithm=algorithm, lowercase=lowercase, strip_accents=strips)
        for algorithm in ALGORITHMS
        for lowercase in (False, True)
        for strips in (False, True)
    ]
    assert len({str(trained_identity(config)) for config in configs}) == 8
    assert len({load_tokenizer(config, list(TEXTS.values())).digest for config in configs}) == 8


@pytest.mark.parametrize("keys", [{}, UNCASED, {"algorithm": "bpe", "size": 600}])
def test_training_is_the_same_every_time(keys):
    """The trainer of the library is not: it numbers continuation letters in the order of a hash map."""
    texts = [*sentences(300, longest=8), *TEXTS.values()]
    vocabularies = [trained(texts, **{"size": 200} | keys).get_vocab() for _ in range(6)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)


@pytest.mark.parametrize("keys", [{"size": 64}, {"size": 64} | UNCASED, {"algorithm": "bpe", "size": 400}])
def test_a_word_without_end_is_trained_on_in_time_and_changes_no_other_word(keys):
    usual = "hello world, well told " * 50
    endless = "helloworld" * 200_000
    started_s = time.process_time()
    tokenizer = trained([usual, endless], **keys)
    assert time.process_time() - started_s < 30, "each merge read the whole word, which took hours"
    assert len(tokenizer.tokenize("hello")) == 1


@pytest.mark.parametrize(("length", "is_cut"), [(2000, False), (2001, True)])
@pytest.mark.parametrize("end", [" next", ".", "\n", ""])
def test_only_a_word_of_thousands_of_letters_is_cut(length, is_cut, end):
    word = ("abcdefghij" * 300)[:length]
    parts = " ".join(word[at : at + 100] for at in range(0, length, 100))
    assert list(training_text.head_of_texts([f"short {word}{end}"])) == [
        f"short {parts if is_cut else word}{end}"
    ]


def test_a_generator_can_be_trained_on(tokenizer_dir):
    generated = train_tokenizer((text for text in sentences(200)), TokenizerConfig(vocab_size=120))
    assert generated.get_vocab() == PreTrainedTokenizerFast.from_pretrained(tokenizer_dir).get_vocab()


def test_the_size_is_never_exceeded_and_the_vocabulary_reaches_what_was_asked_for():
    texts = ["".join(chr(0x100 + (7 * i + j) % 600) for j in range(20)) for i in range(200)]
    assert len(trained(texts, 100)) <= 100
    assert len(trained(texts, 300, algorithm="bpe")) == 300
    found = load_tokenizer(TokenizerConfig(vocab_size=5000), texts)
    assert found.num_tokens < 5000
    assert found.vocab_size == 5120, "the embedding has the planned size even where the text has fewer words"


@pytest.mark.parametrize(
    ("algorithm", "least", "others"),
    [("wordpiece", 20, "5 special tokens"), ("bpe", 272, "256 bytes and 4 special tokens")],
)
def test_sizes_and_texts_that_cannot_be_trained_on(algorithm, least, others):
    with pytest.raises(ProjectError, match=f"next to {others} .TOK004") as caught:
        trained(["a"], least - 1, algorithm=algorithm)
    assert caught.value.hint.endswith(f"at least {least}")
    trained(["a"], least, algorithm=algorithm)
    for texts in ([], ["", "  \n"]):
        with pytest.raises(ProjectError, match="DAT004"):
            trained(texts, least, algorithm=algorithm)


@given(st.text(st.characters(max_codepoint=127), max_size=200))
def test_ascii_characters_are_normalised_one_by_one_as_in_their_text(text):
    """The alphabet is counted from the distinct characters of such texts."""
    for keys in ({}, {"lowercase": True}, {"strip_accents": True}, UNCASED):
        normalize_str = normalizer(TokenizerConfig(**keys)).normalize_str
        assert Counter("".join(map(normalize_str, text))) == Counter(normalize_str(text))


def test_a_trained_tokenizer_is_opened_without_the_class_that_imports_torch(
    tokenizer_dir, tmp_path, monkeypatch
):
    folder = shutil.copytree(tokenizer_dir, tmp_path / "tokenizer")
    general = load_tokenizer(TokenizerConfig(path=str(folder)))
    (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    by_auto = load_tokenizer(TokenizerConfig(path=str(folder)))
    assert type(general.tokenizer) is type(by_auto.tokenizer)
    assert general.digest == by_auto.digest
    assert general.tokenizer.init_kwargs.keys() == by_auto.tokenizer.init_kwargs.keys()

    def refuse(*_, **__):
        raise AssertionError("AutoTokenizer is asked")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    (folder / "config.json").unlink()
    assert load_tokenizer(TokenizerConfig(path=str(folder))).digest == general.digest
    for content in ("{", "[]", '{"tokenizer_class": "BertTokenizer"}', '{"auto_map": {}}'):
        (folder / "tokenizer_config.json").write_text(content, encoding="utf-8")
        refusal_of(load_tokenizer, "TOK001", "AutoTokenizer is asked", TokenizerConfig(path=str(folder)))
