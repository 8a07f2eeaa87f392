"""Texts framed as GPT-2, Llama, RoBERTa or BERT frame them, or not at all: segments, pieces, pairs, rows."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import normalizers

from neobert.config import from_dict
from neobert.config.schema import TokenizerConfig
from neobert.data.batches.streams import TrainStream
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.encoding import segment_encoder
from neobert.data.tokenize.framing import Framing, measure_framing
from neobert.data.tokenize.tokenizers import build_bundle, load_tokenizer
from neobert.errors import ProjectError
from neobert.tasks.classification.examples import LabelledTexts
from tests.data.conftest import WORDS, rows_of, sentences
from tests.framed_tokenizers import END, KINDS, START, UNKNOWN, tokenizer_of
from tests.jsonl import write_jsonl

FRAMINGS = {
    "nothing": (Framing(), Framing()),
    "end of text": (Framing(end=(1,)), Framing(between=(1,), end=(1,))),
    "beginning": (Framing(start=(0,)), Framing(start=(0,), between=(0,))),
    "BERT": (Framing(start=(0,), end=(1,)), Framing(start=(0,), between=(1,), end=(1,))),
    "RoBERTa": (Framing(start=(0,), end=(1,)), Framing(start=(0,), between=(1, 1), end=(1,))),
}
WORDED = {
    "nothing": "text",
    "end of text": "text </s>",
    "beginning": "<s> text",
    "BERT": "<s> text </s>",
    "RoBERTa": "<s> text </s>",
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def framed(kind):
    return build_bundle(tokenizer_of(kind, WORDS), kind)


def segments_of(encoded):
    return [part.tolist() for part in np.split(encoded.tokens, np.cumsum(encoded.lengths)[:-1])]


def test_a_framing_is_what_the_post_processor_adds(kind, framed):
    backend = framed.tokenizer.backend_tokenizer
    assert (measure_framing(backend), measure_framing(backend, 2)) == FRAMINGS[kind]
    assert framed.summary()["framing"] == WORDED[kind]
    assert not framed.is_maskable[framed.framing.frame(())].any(), "markers are never masked"


@pytest.mark.parametrize("unknown", [START, END])
def test_a_marker_that_is_the_unknown_token_is_no_text(kind, unknown):
    """As GPT-2's end of a text: the sample may itself be unknown."""
    assert measure_framing(tokenizer_of(kind, WORDS, unknown=unknown).backend_tokenizer) == FRAMINGS[kind][0]


TEXTS = st.lists(st.lists(st.sampled_from(["ba", "go", "fi", "other"]), max_size=30), min_size=1, max_size=6)


@given(TEXTS, st.integers(3, 12), st.sampled_from(["split", "truncate", "drop"]), st.booleans())
@example([["ba"] * 10], 10, "split", False)
@example([["ba"] * 21], 10, "split", False)
@example([["ba"] * 10], 10, "truncate", False)
def test_segments_are_the_framed_text_whole_or_in_pieces(framed, documents, max_length, fate, frames_pieces):
    single = framed.framing
    framing = Framing(single.start, end=single.end, frames_pieces=frames_pieces)
    encoder = segment_encoder(framed, max_length, 1, fate, framing=framing)
    num_framing = num_lost = 0
    for words in documents:
        ids = framed.tokenizer(" ".join(words), add_special_tokens=False).input_ids
        whole = framed.tokenizer(" ".join(words)).input_ids
        encoded = encoder.encode(rows_of([" ".join(words)]))
        found = segments_of(encoded) if len(encoded.lengths) else []
        assert all(len(part) <= max_length for part in found)
        assert encoded.counts.maskable == sum(framed.is_maskable[part].sum() for part in found)
        num_framing, num_lost = encoded.counts.framing, encoded.counts.tokens_lost
        counts = encoded.counts
        assert (counts.documents, counts.empty, sum(counts.histogram)) == (1, not ids, bool(ids))
        assert counts.tokens == encoded.lengths.sum() == len(encoded.tokens)
        assert counts.special == 0
        if not ids:
            assert found == []
        elif len(whole) <= max_length:
            assert found == [whole]
        elif fate == "drop":
            assert (found, num_lost) == ([], len(whole))
        elif frames_pieces:
            inside = [part[len(single.start) : len(part) - len(single.end)] for part in found]
            texts = [token for part in inside for token in part]
            assert found == [[*single.start, *part, *single.end] for part in inside]
            assert all(len(part) == max_length for part in found[:-1]), "no piece could be longer"
            assert texts == (ids if fate == "split" else ids[: max_length - single.size])
            assert num_framing == single.size * len(found)
        elif fate == "split":
            assert [token for part in found for token in part] == whole
            assert all(any(token in ids for token in part) for part in found), "no piece without text"
            assert all(len(part) >= max_length - 1 for part in found[:-1])
            assert num_framing == single.size
        else:
            kept = len(found[0]) - len(single.start)
            assert found == [[*single.start, *ids[:kept]]], "the end of the text was cut off"
            assert (num_framing, num_lost) == (len(single.start), len(ids) - kept)


def labelled(**dataset):
    return from_dict(
        {
            "task": "classification",
            "classification": {"pair_column": "other", "num_labels": 2},
            "dataset": {"long_documents": "truncate", **dataset},
        }
    )


@given(
    st.lists(st.lists(st.sampled_from(["ba", "go"]), max_size=12), min_size=2, max_size=2), st.integers(5, 20)
)
def test_a_pair_has_the_tokens_that_its_tokenizer_gives_it(framed, words, max_length):
    first, second = (" ".join(each) or " " for each in words)
    encoder = LabelledTexts(labelled(max_seq_length=max_length)).encoder(framed)
    encoded = encoder.encode([{"text": first, "pair": second, "label": 1}])
    options = {"truncation": "longest_first", "max_length": max_length}
    expected = framed.tokenizer(first, second, **options).input_ids
    assert encoded.tokens.tolist() == (expected if any(words) else [])


def test_packed_documents_are_framed_and_isolated(kind, configure, tmp_path):
    tokenizer_of(kind, WORDS, mask_token=UNKNOWN).save_pretrained(tmp_path / "tok")
    text = write_jsonl(tmp_path / "a.jsonl", sentences(60))
    config = configure(tokenizer__path=str(tmp_path / "tok"), dataset__path=str(text))
    prepared = prepare(config)
    single = prepared.tokenizer.framing
    with TrainStream(prepared, config, prepared.tokenizer) as stream:
        batch = next(stream)
    labels, inputs = batch.labels.numpy(), batch.input_ids.numpy()
    ids = np.where(labels == -100, inputs, labels)
    bounds = batch.cu_seqlens[: batch.num_segments + 1].tolist()
    for start, stop in pairwise(bounds):
        document = ids[start:stop].tolist()
        inside = document[len(single.start) : len(document) - len(single.end)]
        assert document == single.frame(inside)
        assert min(inside) > 1, "markers are outside the text only"
    assert batch.num_segments > 4
    assert bounds[-1] == batch.num_tokens <= 128


def test_a_task_needs_the_roles_that_it_names_and_no_others(tmp_path):
    """GPT-2's tokenizer has neither padding nor mask: it classifies, but it cannot mask words."""
    tokenizer_of("nothing", WORDS, unknown=END).save_pretrained(tmp_path)
    config = TokenizerConfig(path=str(tmp_path))
    found = load_tokenizer(config)
    assert (found.pad_id, found.filler_id, found.framing) == (None, 0, Framing())
    with pytest.raises(ProjectError, match="has no mask token, which the task needs") as refusal:
        load_tokenizer(config, roles=("mask_token",))
    assert (refusal.value.code, refusal.value.place) == ("TOK002", str(tmp_path))
    assert "allow_special_token_rewrite" in refusal.value.hint
    assert "mask_token" in refusal.value.hint
    assert refusal.value.hint.endswith("; for a decoder, set a task without masks")


@pytest.mark.parametrize(("task", "is_possible"), [("pretrain", False), ("classification", True)])
def test_only_masked_words_need_a_mask(task, is_possible, tmp_path):
    tokenizer_of("end of text", WORDS).save_pretrained(tmp_path / "tok")
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(sentences(30))]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    dataset = {"path": str(tmp_path / "a.jsonl"), "cache_dir": str(tmp_path), "long_documents": "truncate"}
    dataset["max_seq_length"] = 8
    sections = {"task": task, "dataset": dataset, "tokenizer": {"path": str(tmp_path / "tok")}}
    config = from_dict(sections)
    if is_possible:
        assert prepare(config).tokenizer.framing == Framing(end=(1,))
        return
    with pytest.raises(ProjectError, match="mask token"):
        prepare(config)


def test_a_tokenizer_that_deletes_the_sample_is_measured_by_another_token():
    backend = tokenizer_of("BERT", ["b"]).backend_tokenizer
    backend.normalizer = normalizers.Replace("a", "")
    assert measure_framing(backend) == FRAMINGS["BERT"][0]
