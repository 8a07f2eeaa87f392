import copy
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from neobert.config.schema import TokenizerConfig
from neobert.data.sources.rows import count_characters
from neobert.data.tokenize import encoding, encoding_pool, long_texts
from neobert.data.tokenize.encoding import Counts, SegmentEncoder, segment_encoder, token_dtype
from neobert.data.tokenize.encoding_pool import encode_all, encode_in_processes
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.errors import ProjectError
from tests.data.conftest import rows_of, sentences, write_jsonl
from tests.data.mortal import Mortal
from tests.refusals import refusal_of


@pytest.fixture(scope="module")
def bundle(tokenizer_dir) -> TokenizerBundle:
    return load_tokenizer(TokenizerConfig(path=str(tokenizer_dir)))


def encoder(bundle: TokenizerBundle, max_length: int = 16, **options: object) -> SegmentEncoder:
    return segment_encoder(bundle, max_length, options.pop("min_length", 1), options.pop("long", "split"))


def plain(bundle: TokenizerBundle, text: str) -> list[int]:
    return bundle.tokenizer(text, add_special_tokens=False).input_ids


def byte_level(*normalizer: normalizers.Normalizer) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=["[MASK]"])
    backend.train_from_iterator(sentences(200), trainer)
    if normalizer:
        backend.normalizer = normalizer[0]
    return backend


PARTS = ["ba", "golu", ".", "12", "[MASK]", "caf\u00e9", "\u4f60\u597d", "x" * 30]
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\t", " " * 20]


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "prefixed"])
def test_a_long_document_is_tokenised_in_pieces_and_no_token_changes(bundle, kind, monkeypatch):
    """A tokenizer that puts a prefix before each text is given the whole."""
    prefixed = {"prefixed": (normalizers.Prepend("go"),)}
    wordpiece = segment_encoder(bundle, 16, 1, "split")
    backend = wordpiece.backend if kind == "wordpiece" else byte_level(*prefixed.get(kind, ()))
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "TOKENISED_CHARACTERS", 150)
    own = wordpiece.ascii_backend if kind == "wordpiece" else None
    cut = replace(wordpiece, backend=backend, ascii_backend=own)

    @given(st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(SPACES)), max_size=200))
    @example([("golu", " ")] * 100)
    def check(pairs: list[tuple[str, str]]) -> None:
        text = "".join(part + space for part, space in pairs)
        ids = [list(each) for each in cut.token_ids([text, "", "ba"])]
        assert ids == [backend.encode(each, add_special_tokens=False).ids for each in (text, "", "ba")]
        num_pieces.append(sum(1 for _ in cut._pieces_with_end_marks(text)))

    num_pieces: list[int] = []
    check()
    assert max(num_pieces) > 1 or kind == "prefixed"


@pytest.mark.parametrize("letter", ["\u4f60", "x", "\0"])
def test_a_document_without_white_space_is_tokenised_in_pieces_too(bundle, letter, monkeypatch):
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 1 << 8)
    monkeypatch.setattr(long_texts, "MAX_PIECE_CHARACTERS", 1 << 12)
    (ids,) = encoder(bundle).token_ids([letter * 10_000])
    if letter == "\u4f60":
        assert len(ids) == 10_000
    else:
        assert 100 <= len(ids) <= 120, "an unknown word is a token for each 100 letters"


def test_each_fate_of_a_long_document_is_counted(bundle):
    long, short = " ".join(["ba"] * 30), "ba go"
    whole = len(plain(bundle, long))

    def outcome(fate: str) -> tuple[list[int], Counts]:
        encoded = encoder(bundle, 16, long=fate).encode(rows_of([short, long, ""]))
        return encoded.lengths.tolist(), encoded.counts

    lengths, counts = outcome("split")
    assert (lengths, counts.split, counts.tokens_lost) == ([4, 16, 16, 4], 1, 0)
    lengths, counts = outcome("truncate")
    assert (lengths, counts.truncated, counts.tokens_lost) == ([4, 16], 1, whole - 14)
    assert counts.truncation_share == pytest.approx((whole - 14) / (whole - 14 + 20))
    lengths, counts = outcome("drop")
    assert (lengths, counts.dropped, counts.tokens_lost) == ([4], 1, whole + 2)


def test_lengths_fall_into_bins_of_powers_of_two(bundle):
    counts = encoder(bundle, 64).encode(rows_of(" ".join(["ba"] * n) for n in (1, 2, 3, 6, 7))).counts
    assert counts.histogram[:6] == [0, 0, 2, 2, 1, 0]


def test_unknown_tokens_and_special_ones_that_the_text_spells_are_counted(bundle):
    counts = (
        encoder(bundle)
        .encode(rows_of(["ba go", "[MASK] ba [PAD]", "\u4f60 ba \u597d \U0001f600", "[SEP]"]))
        .counts
    )
    assert (counts.special, counts.unknown) == (3, 3)
    assert (counts.segments, counts.tokens) == (4, 2 + 3 + 4 + 1 + 8)


def test_a_marker_that_is_the_unknown_token_too_counts_as_a_marker(bundle):
    tokenizer = copy.deepcopy(bundle.tokenizer)
    tokenizer.unk_token = tokenizer.sep_token
    counts = encoder(replace(bundle, tokenizer=tokenizer)).encode(rows_of(["ba go", "[MASK]"])).counts
    assert (counts.special, counts.unknown) == (1, 0)


def test_short_documents_are_left_out_but_short_ends_are_kept(bundle):
    encoded = encoder(bundle, 8, min_length=5).encode(rows_of(["ba", "ba ba ba", " ".join(["ba"] * 7)]))
    assert encoded.lengths.tolist() == [5, 8, 3]
    assert encoded.counts.too_short == 1


def test_a_document_that_may_not_be_long_is_named(bundle):
    texts = [*sentences(700, longest=5), " ".join(["ba"] * 40)]
    with pytest.raises(ProjectError) as caught:
        list(encode_all(rows_of(texts), encoder(bundle, 16, long="error"), 1, "my text"))
    error = caught.value
    assert (error.code, error.place) == ("DAT012", "my text")
    assert "document 701 has 42 tokens" in error.message
    assert "(limit 16)" in error.message


@pytest.mark.parametrize(("given", "expected"), [(None, "true"), ("false", "false")])
def test_the_library_uses_all_cores_unless_the_user_forbids_it(bundle, monkeypatch, given, expected):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", given or "")
    if given is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    list(encode_all(rows_of(["a b"]), encoder(bundle), 1, "text"))
    assert os.environ["TOKENIZERS_PARALLELISM"] == expected


def test_processes_change_nothing(bundle):
    texts = sentences(2000, longest=20)
    one, two = (list(encode_all(rows_of(texts), encoder(bundle), count, "text")) for count in (1, 2))
    assert len(one) == len(two) > 2
    for left, right in zip(one, two, strict=True):
        assert np.array_equal(left.tokens, right.tokens)
        assert np.array_equal(left.lengths, right.lengths)
        assert left.counts == right.counts


def test_a_process_that_is_killed_at_work_is_told_from_one_that_never_began():
    """The seventh batch is handed out when the first has come back."""
    encoded = encode_in_processes(iter([("ba",)] * 6 + [("die",)]), Mortal(), 2)
    assert next(encoded) == "ba"
    assert refusal_of(list, "DAT009", "was killed", encoded).hint == "lower dataset.num_proc"


def test_counts_add_up(bundle):
    texts = [*sentences(40), ""]
    whole = encoder(bundle).encode(rows_of(texts)).counts
    parts = Counts()
    for start in range(0, 41, 10):
        parts.add(encoder(bundle).encode(rows_of(texts[start : start + 10])).counts)
    assert parts == whole


def test_settings_saved_with_a_tokenizer_do_not_cut(bundle):
    """A tokenizer.json may carry the truncation and padding of its last call."""
    backend = bundle.tokenizer.backend_tokenizer
    backend.enable_truncation(4)
    backend.enable_padding(length=30)
    try:
        assert encoder(bundle, 64).encode(rows_of([" ".join(["ba"] * 20), "ba"])).lengths.tolist() == [
            22,
            3,
        ]
    finally:
        backend.no_truncation()
        backend.no_padding()


def test_a_context_without_room(bundle):
    with pytest.raises(ProjectError, match="MOD002"):
        encoder(bundle, 2)


MEASURED = """
import sys
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer
from neobert.data.tokenize.encoding import SegmentEncoder
from neobert.data.tokenize.encoding_pool import encode_all
from neobert.data.tokenize.framing import Framing
from neobert.data.sources.rows import text_rows
from neobert.data.sources.text_files import read_rows
from neobert.config.schema import DatasetConfig

def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024

backend = Tokenizer.from_file(sys.argv[1])
framing, maskable = Framing((0,), (), (1,)), np.ones(1 << 16, bool)
encoder = SegmentEncoder(backend, framing, 64, 1, "split", np.dtype("uint16"), None, maskable)
before = peak_mib()
for path in sys.argv[2:]:
    for encoded in encode_all(read_rows(Path(path), text_rows(DatasetConfig())), encoder, 1, path):
        assert encoded.counts.tokens > 0
print(peak_mib() - before)
"""


def test_memory_does_not_depend_on_the_length_of_a_line(tokenizer_dir, tmp_path):
    """3 MB in one line, as text and as JSON, take 73 MiB; tokenised as a whole, 473 MiB."""
    text = " ".join(sentences(20_000))
    assert len(text) > 1_500_000
    text += " " + text
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    write_jsonl(tmp_path / "a.jsonl", [text])
    files = [tokenizer_dir / "tokenizer.json", tmp_path / "a.txt", tmp_path / "a.jsonl"]
    child = subprocess.run(
        [sys.executable, "-c", MEASURED, *files], check=True, capture_output=True, text=True
    )
    assert int(child.stdout) < 250


def test_the_narrowest_type_that_holds_the_vocabulary():
    assert [token_dtype(size).name for size in (128, 1 << 16, (1 << 16) + 1)] == [
        "uint16",
        "uint16",
        "uint32",
    ]


def test_the_type_holds_the_ids(bundle):
    wide = replace(encoder(bundle), dtype=np.dtype(np.uint32))
    assert wide.encode(rows_of(["ba"])).tokens.dtype == np.uint32


def test_books_are_encoded_a_few_at_a_time(bundle, monkeypatch):
    sizes = []
    real = SegmentEncoder.encode

    def watched(self, rows):
        sizes.append(sum(map(count_characters, rows)))
        return real(self, rows)

    monkeypatch.setattr(SegmentEncoder, "encode", watched)
    monkeypatch.setattr(encoding_pool, "BATCH_CHARACTERS", 1000)
    texts = [" ".join(sentences(80)), "", *sentences(200, longest=6)]
    encoded = list(encode_all(rows_of(texts), encoder(bundle), 1, "books"))
    assert max(sizes) < 1000 + max(map(len, texts))
    assert sum(batch.counts.documents for batch in encoded) == len(texts)
    whole = real(encoder(bundle), rows_of(texts))
    assert np.concatenate([batch.tokens for batch in encoded]).tolist() == whole.tokens.tolist()
