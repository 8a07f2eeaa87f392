"""Exact search in blocks, against the whole product."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.search import exact
from neobert.search.exact import best_rows

CPU = torch.device("cpu")


def whole(queries, documents, most):
    scores = queries @ documents.T
    order = np.argsort(-scores.round(exact.TIE_DIGITS), axis=1, kind="stable")[:, :most]
    return np.take_along_axis(scores, order, 1), order


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 70), st.integers(1, 20), st.integers(1, 3))
def test_the_best_of_blocks_are_the_best_of_all(documents, queries, most, block, at_once):
    random = np.random.default_rng(documents)
    rows = random.standard_normal((documents, 4)).astype(np.float32)
    sources = random.standard_normal((queries, 4)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "BLOCK_ROWS", block)
        patch.setattr(exact, "QUERIES_AT_ONCE", at_once)
        scores, places = best_rows(sources, rows, most, CPU)
    wanted = whole(sources, rows, most)
    assert places.tolist() == wanted[1].tolist()
    np.testing.assert_allclose(scores, wanted[0], atol=1e-6)


def test_copies_of_a_document_are_in_the_order_of_rows(monkeypatch):
    monkeypatch.setattr(exact, "BLOCK_ROWS", 2)
    documents = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [1, 0]], np.float32)
    assert best_rows(documents[1:2], documents, 5, CPU)[1].tolist() == [[1, 3, 4, 0, 2]]


def test_a_mapped_file_is_searched_without_holding_it(tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "BLOCK_ROWS", 100)
    documents = np.random.default_rng(0).standard_normal((250, 3)).astype(np.float32)
    np.save(tmp_path / "rows.npy", documents)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="c")
    places = {(start, len(block), block.ctypes.data) for start, block in exact._document_blocks(mapped)}
    assert {place[:2] for place in places} == {(0, 100), (100, 100), (200, 50)}
    assert len({place[2] for place in places}) == 1  # one buffer
    assert (
        best_rows(documents[:3], mapped, 4, CPU)[1].tolist() == whole(documents[:3], documents, 4)[1].tolist()
    )
