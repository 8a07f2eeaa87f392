"""Control tokens that messages spell, as plain text, by tokenizers of each kind."""

import re
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from neobert.errors import ProjectError
from neobert.tasks.sft.neutral import rename_control_tokens, tokenize_neutral
from neobert.tasks.sft.rendered import Span

START, END, SPELLED = "<|start|>", "<|end|>", "<|spare|>"
LETTERS = [*"▁abcdefghijklmnopqrstuvwxyz|<>.\n", "▁<", "|>", "▁a"]
MERGES = [("▁", "<"), ("|", ">"), ("▁", "a")]
METASPACE = {
    scheme: pre_tokenizers.Metaspace(prepend_scheme=scheme) for scheme in ("first", "always", "never")
}


def bpe(**parts: Any) -> Tokenizer:
    names = ["<unk>", "<s>", *LETTERS]
    vocabulary = {token: at for at, token in enumerate(names)}
    backend = Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>", fuse_unk=True))
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("<s>", 0.0), *((token, -1.0 - len(token) / 9) for token in LETTERS)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = METASPACE["always"]
    return backend


def legacy() -> Tokenizer:
    """Return a tokenizer as that of Llama 2: each stretch of text begins with a space."""
    return bpe(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))


KINDS = {
    "legacy": legacy,
    "unigram": unigram,
    **{f"metaspace {name}": lambda part=part: bpe(pre_tokenizer=part) for name, part in METASPACE.items()},
    "bytes": lambda: bpe(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
}
TEXTS = [
    f"{START}a {SPELLED} b {SPELLED}{END}\n{START}c{END}",
    f"{SPELLED}a{END}",
    f"a{SPELLED}b{END} c{SPELLED}",
    f"<s>a {START} {SPELLED}. {END} <|end {SPELLED} |>",
]


def with_added(kind: str, *more: str) -> Tokenizer:
    backend = KINDS[kind]()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken(START), AddedToken(END, rstrip=True), *more])
    return backend


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_a_tokenizer_without_the_control_token(kind, text):
    control = re.compile("|".join(map(re.escape, ("<|spare|>", START, END, "<s>"))))
    plain = [Span(*match.span()) for match in re.finditer(re.escape(SPELLED), text)]
    ids, offsets = tokenize_neutral(
        rename_control_tokens(with_added(kind, SPELLED), control), text, plain, control
    )
    expected = with_added(kind).encode(text, add_special_tokens=False)
    assert (ids.tolist(), [*map(tuple, offsets.tolist())]) == (expected.ids, expected.offsets)


def test_what_is_spelled_is_text_and_what_the_template_wrote_is_not():
    control, backend = re.compile(re.escape(END)), with_added("metaspace first")
    text = f"a {END}{END}"
    ids, _ = tokenize_neutral(rename_control_tokens(backend, control), text, [Span(2, 2 + len(END))], control)
    end = backend.token_to_id(END)
    assert ids.tolist().count(end) == 1
    assert ids[-1] == end


def test_a_tokenizer_that_changes_the_names_is_refused():
    backend, control = legacy(), re.compile(re.escape(END))
    backend.normalizer = normalizers.Replace(Regex("[\ufdd0\ufdd1]"), "")
    backend.add_special_tokens([AddedToken(END, normalized=True)])
    with pytest.raises(ProjectError, match="changes names of control tokens") as caught:
        tokenize_neutral(rename_control_tokens(backend, control), f"{END}{END}", [Span(0, len(END))], control)
    assert caught.value.hint == "set sft.control_tokens to refuse"
