"""Mixtures of corpora: proportions, one order for all ranks, and a resume from any cursor."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.config.schema import MixtureCorpus, RunConfig
from neobert.data.batches.mixture import CorpusSlice, MixedText, MixedWindows
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.windows import Cursor, training_shape
from neobert.data.store.contents import describe
from neobert.data.store.prepare import prepare
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.token_store import MANIFEST, LengthStatistics, TokenStore
from neobert.errors import ProjectError
from tests.data.conftest import Configure, configurator, read, same, sentences, write_jsonl


def mixed_text(lengths: list[np.ndarray], weights: list[float]) -> MixedText:
    whole = np.concatenate(lengths)
    store = TokenStore(
        np.zeros(0, np.uint16), np.concatenate(([0], np.cumsum(whole))), LengthStatistics.from_lengths(whole)
    )
    stops = np.cumsum([len(each) for each in lengths])
    corpora = [
        CorpusSlice(f"corpus {number}", weight, int(stop) - len(each), int(stop), int(each.sum()))
        for number, (each, weight, stop) in enumerate(zip(lengths, weights, stops, strict=True))
    ]
    return MixedText(store, tuple(corpora))


@st.composite
def texts(draw: st.DrawFn) -> MixedText:
    count = draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    lengths = [random.integers(3, draw(st.integers(4, 65)), draw(st.integers(50, 400))) for _ in range(count)]
    return mixed_text(lengths, [draw(st.floats(0.05, 20)) for _ in range(count)])


def tokens_of(text: MixedText, segments: np.ndarray) -> np.ndarray:
    """Count the tokens of each corpus."""
    corpus = np.searchsorted([each.stop for each in text.corpora], segments, side="right")
    return np.bincount(corpus, text.store.lengths(segments), minlength=len(text.corpora))


@given(texts(), st.integers(0, 99))
@settings(max_examples=25)
def test_each_corpus_gets_its_share_of_the_tokens(text, seed):
    drawn = [text.draw(seed, 4_000, window)[0] for window in range(5)]
    expected = 5 * 4_000 * np.array([float(share) for share in text.shares])
    longest = [text.store.lengths(np.arange(each.first, each.stop)).max() for each in text.corpora]
    # A pass has the mean length exactly; what is left is the part of a pass at the end.
    unfinished = [len(each) * most for each, most in zip(text.corpora, longest, strict=True)]
    assert (np.abs(tokens_of(text, np.concatenate(drawn)) - expected) <= np.array(unfinished)).all()


def test_proportions_converge():
    random = np.random.default_rng(0)
    text = mixed_text([random.integers(3, 30, 500), random.integers(20, 65, 90)], [0.7, 0.3])
    for windows, tolerance in ((1, 0.02), (20, 0.001)):
        drawn = np.concatenate([text.draw(1, 20_000, window)[0] for window in range(windows)])
        share = tokens_of(text, drawn)[0] / tokens_of(text, drawn).sum()
        assert share == pytest.approx(0.7, abs=tolerance)


@given(texts(), st.integers(0, 99), st.lists(st.integers(1, 6000), min_size=1, max_size=3))
@settings(max_examples=25)
def test_a_corpus_is_read_through_before_it_is_read_again(text, seed, sizes):
    """Windows cut the same sequence anywhere: a segment comes once in every pass, in another order."""
    for tokens in sizes:
        windows = [text.draw(seed, tokens, window) for window in range(4)]
        segments, passes = (np.concatenate(each) for each in zip(*windows, strict=True))
        assert len(np.unique(segments + passes * len(text))) == len(segments)
        for corpus in text.corpora:
            inside = (segments >= corpus.first) & (segments < corpus.stop)
            counts = np.bincount(passes[inside])
            assert (counts[:-1] == len(corpus)).all(), "only the last pass is not whole"
    first, second = (text.draw(seed, 4 * text.tokens_per_pass, 0)[0][:40] for seed in (0, 1))
    assert len(first) < 8 or not np.array_equal(first, second)


def test_a_window_holds_a_pass_or_many_microbatches():
    text = mixed_text([np.full(2000, 30), np.full(50_000, 30)], [1.0, 1.0])
    small, large = BatchShape(1, 64, 8, is_packed=True), BatchShape(64, 64, 200, is_packed=True)
    assert MixedWindows(text, small, 0).tokens_per_window == 2 * 2000 * 30
    assert MixedWindows(text, large, 0).tokens_per_window == 128 * 64 * 64


def test_the_shape_is_that_of_the_text_as_it_is_drawn():
    text = mixed_text([np.full(9000, 8), np.full(1000, 64)], [0.1, 0.9])
    assert text.statistics.mean == pytest.approx(1 / (0.1 / 8 + 0.9 / 64), rel=0.01)
    assert training_shape(RunConfig(), text).value.max_examples > 0


Mixed = tuple[RunConfig, PreparedData]
BOTH = (MixtureCorpus(weight=3.0, path="books"), MixtureCorpus(weight=1.0, path="web", text_column="body"))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Configure:
    root = tmp_path_factory.mktemp("mixture")
    write_jsonl(root / "books" / "train.jsonl", sentences(60, 1))
    write_jsonl(root / "web" / "train.jsonl", sentences(400, 2), "body")
    configure = configurator(root / "cache", tokenizer_dir, root / "none")
    corpora = tuple(replace(corpus, path=str(root / str(corpus.path))) for corpus in BOTH)
    return lambda **changes: configure(
        **{"dataset__path": None, "dataset__mixture": corpora, "dataset__validation_split": 0.1} | changes
    )


@pytest.fixture(scope="module")
def mixed(make: Configure) -> Mixed:
    config = make()
    return config, prepare(config)


def test_every_corpus_gives_evaluation_and_training_text(mixed):
    _, data = mixed
    assert data.mixture is not None
    assert data.eval is not None
    assert sum(map(len, data.mixture.corpora)) == len(data.train)
    assert [round(float(share), 3) for share in data.mixture.shares] == [0.75, 0.25]
    report = data.report["corpora"]
    assert len(report) == 2
    assert sum(each["tokens"] for each in report.values()) == data.train.num_tokens
    books, web = report.values()
    assert books["tokens_read"] == pytest.approx(3 * web["tokens_read"], rel=1e-3)
    assert books["epochs"] > web["epochs"]


def test_the_order_is_the_same_for_every_number_of_ranks_and_threads(mixed):
    alone = read(mixed, 24)
    for world_size in (2, 4):
        ranks = [read(mixed, 24 // world_size, rank, world_size, num_workers=2) for rank in range(world_size)]
        dealt = [batch for group in zip(*ranks, strict=True) for batch in group]
        assert all(same(mine, theirs, cursor=False) for mine, theirs in zip(alone, dealt, strict=True))


def test_a_resume_at_any_microbatch_continues_bit_for_bit(mixed):
    batches = read(mixed, 180)
    assert batches[-1].cursor.window >= 1, "the walk crosses a window"
    for place in (0, 1, 60, 126, 127, 128, 129, 130, 170):
        cursor = Cursor.from_dict(json.loads(json.dumps(batches[place].cursor.to_dict())))
        for resumed, original in zip(read(mixed, 3, cursor=cursor), batches[place + 1 :], strict=False):
            assert same(resumed, original), place


def test_a_cursor_counts_the_tokens_that_all_ranks_drew_from_each_corpus(mixed):
    """Counted again here from the microbatches themselves, over the end of a window too."""
    batches = read(mixed, 180)
    drawn = np.zeros(2, np.int64)
    for batch in batches:
        drawn += tokens_of(mixed[1].mixture, batch.sample_ids.numpy() % len(mixed[1].train)).astype(np.int64)
        assert batch.cursor.corpus_tokens == tuple(drawn)
    assert drawn[0] / drawn.sum() == pytest.approx(0.75, abs=0.01)
    assert read(mixed, 90, 1, 2)[-1].cursor == batches[-1].cursor


def test_a_checkpoint_without_counts_resumes_without_them(mixed):
    saved = read(mixed, 60)[-1].cursor.to_dict()
    del saved["corpus_tokens"]
    resumed = read(mixed, 3, cursor=Cursor.from_dict(saved))
    assert all(batch.cursor.corpus_tokens is None for batch in resumed)


def test_a_document_that_is_read_again_is_masked_otherwise(mixed):
    _, data = mixed
    seen: dict[int, list[tuple[int, ...]]] = {}
    for batch in read(mixed, 200):
        ends = batch.cu_seqlens.tolist()
        for number, sample in enumerate(batch.sample_ids.tolist()):
            labels = batch.labels[ends[number] : ends[number + 1]].tolist()
            if len(labels) > 20:
                seen.setdefault(sample % len(data.train), []).append(tuple(labels))
    often = [masks for masks in seen.values() if len(masks) > 2]
    assert often
    assert all(len(set(masks)) > 1 for masks in often)


def test_preflight_finds_nothing_wrong_with_what_ranks_get(mixed):
    found = describe(*mixed)
    assert (found["repeated_samples"], found["missing_samples"], found["wrong_labels"]) == (0, 0, 0)
    assert [each["share"] for each in found["corpora"]] == [0.75, 0.25]


def test_other_weights_are_another_text_from_the_same_cache(mixed, make):
    config, data = mixed
    equal = tuple(MixtureCorpus(path=c.path, text_column=c.text_column) for c in config.dataset.mixture)
    other = prepare(make(dataset__mixture=equal))
    assert other.folder == data.folder
    assert other.fingerprint != data.fingerprint


def test_a_mixture_whose_examples_were_not_counted_is_read(mixed):
    config, data = mixed
    manifest = json.loads((data.folder / MANIFEST).read_text(encoding="utf-8"))
    for corpus in manifest["splits"]["train"]["corpora"]:
        assert corpus.pop("examples") == corpus["segments"]
    (data.folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    assert prepare(config).mixture.corpora == data.mixture.corpora


def refused(config: Any) -> ProjectError:
    with pytest.raises(ProjectError) as error:
        prepare(config)
    return error.value


def test_a_mixture_that_cannot_be_drawn_is_refused(make, tmp_path):
    assert refused(make(dataset__streaming=True, dataset__eval_samples=2)).code == "DAT018"
    assert refused(make(dataset__path="books")).code == "DAT013"
    empty = write_jsonl(tmp_path / "empty.jsonl", ["", " "])
    corpora = (MixtureCorpus(path=str(empty)), *make().dataset.mixture)
    error = refused(make(dataset__mixture=corpora, dataset__validation_split=None))
    assert error.code == "DAT004"
    assert "empty.jsonl" in str(error.place)
