import errno
import json
import logging
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize import tokenizers as loading
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import (
    TokenizerBundle,
    count_renumbered_in_file,
    load_tokenizer,
    refuse_shared_padding,
)
from neobert.data.tokenize.wordpiece import SPECIAL_TOKENS
from neobert.errors import ProjectError
from neobert.export.folder import read_tokenizer_files
from neobert.plan.vocabulary import INERT_TOKEN, count_renumbered, token_ids
from tests.refusals import refusal_of

# Of the 120 asked for, the text yields this many.
NUM_TOKENS = 83


def load(path: Path, **options: object) -> TokenizerBundle:
    return load_tokenizer(TokenizerConfig(path=str(path), **options))


refused = partial(refusal_of, load_tokenizer)


def foreign(folder: Path, vocabulary: list[str], special: list[str]) -> Path:
    """Write a tokenizer.json of whole words, without a template."""
    folder.mkdir(parents=True, exist_ok=True)
    model = models.WordLevel(
        {word: number for number, word in enumerate(vocabulary)}, unk_token=vocabulary[0]
    )
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(special)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def test_a_tokenizer_is_not_changed_and_the_model_has_more_rows_than_tokens(tokenizer_dir, tmp_path):
    """Earlier versions wrote inert tokens for the other rows: their text and checkpoints have the digest."""
    found = load(tokenizer_dir)
    assert (len(found.tokenizer), found.num_tokens, found.vocab_size) == (NUM_TOKENS, NUM_TOKENS, 128)
    assert found.random_ids.tolist() == list(range(5, NUM_TOKENS))
    assert np.array_equal(np.flatnonzero(found.is_maskable), found.random_ids)
    assert len(found.is_maskable) == 128
    names = [INERT_TOKEN.format(number) for number in range(128 - NUM_TOKENS)]
    found.tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    found.save(tmp_path)
    padded = load(tmp_path)
    assert (len(padded.tokenizer), padded.num_tokens, padded.vocab_size) == (128, NUM_TOKENS, 128)
    assert padded.digest == found.digest
    assert np.array_equal(padded.random_ids, found.random_ids)


def test_a_chat_template_is_part_of_the_tokenizer(tokenizer_dir, tmp_path):
    found = load(tokenizer_dir)
    digests = {found.digest}
    for template in ("{{ messages }}", "{{ messages[0] }}"):
        found.tokenizer.chat_template = template
        found.save(tmp_path)
        assert "chat_template.jinja" in read_tokenizer_files(tmp_path)
        digests.add(load(tmp_path).digest)
    assert len(digests) == 3


def test_the_folder_of_a_checkpoint_loads_without_a_warning(tokenizer_dir, tmp_path):
    """Transformers warns of a model type that is not its own: `... is otherwise not supported`."""
    load(tokenizer_dir).save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "not-of-transformers"}', encoding="utf-8")
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("transformers").addHandler(handler)
    try:
        assert load(tmp_path).num_tokens == NUM_TOKENS
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert [record.getMessage() for record in records] == []


def test_a_bare_tokenizer_json_is_known_by_its_special_tokens(tokenizer_dir, tmp_path):
    found = load(tokenizer_dir)
    shutil.copy(tokenizer_dir / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "bert_config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("", encoding="utf-8")
    assert load(tmp_path).digest == found.digest
    assert load(tmp_path / "tokenizer.json").digest == found.digest


def test_padding_of_somebodys_last_call_is_no_part_of_a_tokenizer(tokenizer_dir, tmp_path):
    """As in the tokenizer.json of sentence encoders."""
    backend = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    backend.enable_padding(length=16)
    backend.enable_truncation(4)
    backend.save(str(tmp_path / "tokenizer.json"))
    padded, plain = load(tmp_path / "tokenizer.json"), load(tokenizer_dir / "tokenizer.json")
    assert padded.digest == plain.digest
    assert padded.tokenizer("a b c d e f").input_ids == plain.tokenizer("a b c d e f").input_ids


def test_a_path_beats_a_name(tokenizer_dir):
    config = TokenizerConfig(path=str(tokenizer_dir), name="nobody/nothing")
    assert load_tokenizer(config).vocab_size == 128


def test_the_digest_is_of_the_content(tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "other")
    found, path = load(tokenizer_dir), tmp_path / "other" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    path.write_text(json.dumps(content, indent=3), encoding="utf-8")
    assert load(path.parent).digest == found.digest, "what the last call set is not the tokenizer"
    content["normalizer"]["normalizers"][0]["lowercase"] = True
    path.write_text(json.dumps(content), encoding="utf-8")
    assert load(path.parent).digest != found.digest


@pytest.mark.parametrize(
    ("pad", "role"), [("[MASK]", "mask"), ("[UNK]", "unknown"), ("[SEP]", None), ("[PAD]", None)]
)
def test_padding_is_no_token_that_is_learned(tokenizer_dir, pad, role):
    found = load(tokenizer_dir)
    found.tokenizer.pad_token = pad
    shared = replace(found, pad_id=found.tokenizer.pad_token_id)
    if role is None:
        refuse_shared_padding(shared, "tok")
        return
    with pytest.raises(ProjectError, match=rf"has \{pad} as both padding and {role} token") as refusal:
        refuse_shared_padding(shared, "tok")
    assert (refusal.value.code, refusal.value.place) == ("TOK002", "tok")


def test_a_tokenizer_without_a_mask_gets_one_if_it_may_be_rewritten(tmp_path):
    path = foreign(tmp_path, ["<unk>", "<s>", "</s>", "a", "b"], ["<unk>", "<s>", "</s>"])
    found = load(path, allow_special_token_rewrite=True)
    tokens = found.tokenizer.convert_ids_to_tokens(found.tokenizer("a b").input_ids)
    assert tokens == ["<s>", "a", "b", "</s>"]
    pair = found.tokenizer("a", "b")
    assert found.tokenizer.convert_ids_to_tokens(pair.input_ids) == ["<s>", "a", "</s>", "b", "</s>"]
    assert (found.tokenizer.mask_token, found.tokenizer.pad_token) == ("[MASK]", "[PAD]")
    assert (found.num_tokens, found.vocab_size) == (7, 128)
    found.save(tmp_path / "rewritten")
    assert load(tmp_path / "rewritten").digest == found.digest, "rewritten once, it needs no leave"


@pytest.mark.parametrize("space", ["Ġ", "▁"])
def test_an_added_mask_takes_the_space_before_it(tmp_path, space):
    """As in training text, where the mask replaces a word together with its space."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", space, "Return", f"{space}Return", f"{space}a", f"{space}of"]
    if space == "▁":
        backend = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=1))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        letters = sorted({letter for word in words for letter in word} - set(words))
        vocabulary = {word: number for number, word in enumerate([*words[:5], *letters])}
        merges = [(left, right) for left, right in [(space, "a"), (space, "o"), (f"{space}o", "f")]]
        vocabulary |= {left + right: len(vocabulary) + number for number, (left, right) in enumerate(merges)}
        backend = Tokenizer(models.BPE(vocabulary, merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(words[:4])
    backend.save(str(tmp_path / "tokenizer.json"))
    found = load(tmp_path, allow_special_token_rewrite=True)
    found.save(tmp_path / "rewritten")
    for tokenizer in (found.tokenizer, load(tmp_path / "rewritten").tokenizer):
        ids = tokenizer("Return a [MASK] of").input_ids
        assert tokenizer.convert_ids_to_tokens(ids)[-4:] == [f"{space}a", "[MASK]", f"{space}of", "[SEP]"]


def test_a_mask_that_an_earlier_version_added_is_the_same_tokenizer(tmp_path):
    """It took no space; runs from that version resume."""
    found = load(foreign(tmp_path, ["<unk>", "a"], ["<unk>"]), allow_special_token_rewrite=True)
    found.save(tmp_path / "rewritten")
    path = tmp_path / "rewritten" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    (mask,) = [token for token in content["added_tokens"] if token["content"] == "[MASK]"]
    assert mask["lstrip"]
    mask["lstrip"] = False
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert load(tmp_path / "before").digest == found.digest


def test_words_that_look_like_markers_are_not_markers(tmp_path):
    path = foreign(tmp_path, ["[UNK]", "<s>", "</s>", "a"], ["[UNK]"])
    found = load(path, allow_special_token_rewrite=True)
    assert (found.tokenizer.cls_token, found.tokenizer.sep_token) == ("[CLS]", "[SEP]")


def test_a_tokenizer_that_sets_no_markers_sets_some_if_it_may_be_rewritten(tmp_path):
    path = foreign(tmp_path, [*SPECIAL_TOKENS, "a"], list(SPECIAL_TOKENS))
    assert load(path).framing == Framing()
    assert load(path, allow_special_token_rewrite=True).framing == Framing(start=(2,), end=(3,))


@pytest.mark.parametrize("content", [b"", b"{}", b"{", b"\xff\xfe\x00", b'{"version": "1.0", "model": 3}'])
def test_a_file_that_is_no_tokenizer(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        error = refused("TOK001", "not a tokenizer", TokenizerConfig(path=str(path)))
        assert str(tmp_path) in error.place


def test_places_without_a_tokenizer(tmp_path):
    refused("TOK001", "does not exist", TokenizerConfig(path=str(tmp_path / "nowhere")))
    for named in (TokenizerConfig(path=str(tmp_path)), TokenizerConfig(name=str(tmp_path))):
        assert "HF_HUB_OFFLINE" not in refused("TOK001", "without a tokenizer", named).hint
    refused("TOK001", "cannot be loaded", TokenizerConfig(name="nobody/nothing-of-this-name"))
    refused("TOK001", "no text to train", TokenizerConfig())


def test_a_checkpoint_without_a_tokenizer_is_not_taken_for_one(tmp_path):
    """The library makes a tokenizer without words of a bare config.json."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    refused("TOK001", "", TokenizerConfig(path=str(tmp_path)))


def test_a_broken_tokenizer_beside_its_config(tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    refused("TOK001", "cannot be loaded", TokenizerConfig(path=str(tmp_path / "broken")))


def test_every_special_token_is_spared(tokenizer_dir, tmp_path):
    found = load(tokenizer_dir)
    found.tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    found.save(tmp_path)
    again = load(tmp_path)
    assert again.tokenizer.convert_tokens_to_ids("<turn>") not in again.random_ids
    assert (again.vocab_size, again.num_tokens) == (128, NUM_TOKENS + 1)


def test_a_full_disk_under_a_tokenizer_is_an_error_of_the_system(tokenizer_dir, tmp_path, monkeypatch):
    """The library's Rust half raises plain Exception."""

    def save_pretrained(folder):
        raise Exception("No space left on device (os error 28)")

    found = load(tokenizer_dir)
    monkeypatch.setattr(found.tokenizer, "save_pretrained", save_pretrained)
    with pytest.raises(OSError, match="No space left") as caught:
        found.save(tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_a_vocabulary_is_another_where_its_numbers_are(tokenizer_dir, tmp_path):
    own = load(tokenizer_dir)
    file = tokenizer_dir / "tokenizer.json"
    assert count_renumbered_in_file(own, file) == (0, own.num_tokens)
    text = file.read_text(encoding="utf-8")
    renamed, swapped = tmp_path / "renamed.json", tmp_path / "swapped.json"
    renamed.write_text(text.replace('"ba"', '"renamed"'), encoding="utf-8")
    assert count_renumbered_in_file(own, renamed) == (0, own.num_tokens)
    swapped.write_text(
        text.replace('"ba"', '"x"').replace('"de"', '"ba"').replace('"x"', '"de"'), encoding="utf-8"
    )
    assert count_renumbered_in_file(own, swapped) == (2, own.num_tokens)


def test_a_vocabulary_of_other_words_is_another(tokenizer_dir, tmp_path):
    special = list(SPECIAL_TOKENS)
    other = foreign(tmp_path, [*special, *(f"other{number}" for number in range(9))], special)
    assert count_renumbered_in_file(load(tokenizer_dir), other / "tokenizer.json") == (9, 14)


@given(st.data())
def test_files_alone_show_what_the_library_loads(data):
    """Ids of a tokenizer.json, and the comparison of two, without the library that reads them."""
    words = [*SPECIAL_TOKENS, *"abcdefgh"]
    some = st.lists(st.sampled_from(words[5:]), unique=True, min_size=1)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("here.json", "there.json")]
        for file in files:
            tokens = words[:5] + data.draw(some)
            model = (
                models.WordLevel({token: at for at, token in enumerate(tokens)}, unk_token="[UNK]")
                if data.draw(st.booleans())
                else models.Unigram([(token, -1.0) for token in tokens], unk_id=0, byte_fallback=False)
            )
            tokenizer = Tokenizer(model)
            tokenizer.add_special_tokens(data.draw(st.sampled_from([[], ["[X]"], [INERT_TOKEN.format(0)]])))
            tokenizer.save(str(file))
        here, there = map(token_ids, files)
        own = load(files[0], allow_special_token_rewrite=True)
        other = Tokenizer.from_file(str(files[1])).get_vocab()
        assert there == {token: at for token, at in other.items() if token != INERT_TOKEN.format(0)}
        assert count_renumbered_in_file(own, files[1]) == (count_renumbered(here, there), len(there))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model": []}', '{"model": {"vocab": [1]}, "added_tokens": [1]}']
)
def test_a_damaged_file_has_no_ids(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    assert token_ids(tmp_path / "tokenizer.json") == token_ids(tmp_path / "absent.json") == {}


def test_a_slow_tokenizer_is_refused(monkeypatch):
    monkeypatch.setattr(loading, "tokenizer_from_hub", lambda name, config: object())
    refused("TOK003", "not a fast tokenizer", TokenizerConfig(name="slow"))


def test_ids_with_gaps_are_refused(tmp_path):
    vocabulary = {token: number for number, token in enumerate(SPECIAL_TOKENS)} | {"a": 9_000}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.save(str(tmp_path / "tokenizer.json"))
    config = TokenizerConfig(path=str(tmp_path), allow_special_token_rewrite=True)
    refused("TOK001", "ids up to", config)
