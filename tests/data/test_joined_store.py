"""A text in several stores reads as the same text in one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data.batches.shape import BatchShape
from neobert.data.batches.windows import Cursor, PreparedWindows
from neobert.data.store.opened_text import BlockTable, JoinedStore
from neobert.data.store.token_store import TokenStore
from neobert.data.tokenize.encoding import GROUP, Column, Counts, Encoded

COLUMNS = (
    Column("label", "float32", is_per_token=False),
    Column("mark", "uint8", is_per_token=True),
    Column(GROUP, "uint16", is_per_token=False),
)


def block(sizes: list[int], seed: int, columns: tuple[Column, ...]) -> Encoded:
    """Return examples of `sizes` segments with random tokens."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 9, sum(sizes))
    values = {
        "label": draw.normal(size=len(lengths)).astype(np.float32),
        "mark": draw.integers(0, 2, lengths.sum()).astype(np.uint8),
        GROUP: np.concatenate([np.arange(0), *map(np.arange, sizes)]).astype(np.uint16),
    }
    tokens = draw.integers(0, 1 << 16, lengths.sum()).astype(np.uint16)
    return Encoded(tokens, lengths, Counts(), columns={each.name: values[each.name] for each in columns})


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[TokenStore, JoinedStore]:
    """One store of all blocks, and their parts in any assignment and in any order within a part."""
    columns = COLUMNS if draw(st.booleans()) else COLUMNS[:2]
    most = 4 if columns is COLUMNS else 1
    sizes = draw(st.lists(st.lists(st.integers(1, most), max_size=9), min_size=1, max_size=12))
    if not any(sizes):
        sizes[0] = [1]
    blocks = [block(each, number, columns) for number, each in enumerate(sizes)]
    part = draw(st.lists(st.integers(0, 3), min_size=len(blocks), max_size=len(blocks)))
    order = draw(st.permutations(range(len(blocks))))
    members = [[each for each in order if part[each] == number] for number in range(4)]
    members = [each for each in members if any(sizes[number] for number in each)]
    places = {number: (place, each) for place, each in enumerate(members) for number in each}
    table = []
    for number, size in enumerate(sizes):
        if size:
            place, own = places[number]
            before = own[: own.index(number)]
            firsts = (sum(len(sizes[each]) for each in before), sum(sum(sizes[each]) for each in before))
            table.append((place, *firsts, len(size), sum(size)))
    single = TokenStore.from_batches(blocks, columns)
    stores = [TokenStore.from_batches([blocks[number] for number in each], columns) for each in members]
    return single, JoinedStore(stores, BlockTable(*np.array(table, np.int64).T), single.statistics)


@given(split_texts(), st.data())
@settings(max_examples=200)
def test_parts_read_as_one_store(texts, data):
    single, joined = texts
    assert (len(joined), joined.num_segments) == (len(single), single.num_segments)
    assert joined.num_tokens == single.num_tokens
    assert joined.column_names == single.column_names
    every = np.arange(len(single))
    assert joined.lengths(every).tolist() == single.lengths(every).tolist()
    assert joined.sample_lengths().tolist() == single.sample_lengths().tolist()
    assert joined.highest_id() == single.highest_id()
    chosen = np.array(data.draw(st.lists(st.integers(0, len(single) - 1), max_size=40)), np.int64)
    offset = data.draw(st.sampled_from([0, 7, chosen * 3]))
    for left, right in ((joined.gather(chosen, offset), single.gather(chosen, offset)),):
        for name in ("ids", "positions", "samples", "groups", "lengths"):
            assert getattr(left, name).tolist() == getattr(right, name).tolist(), name
            assert getattr(left, name).dtype == getattr(right, name).dtype, name
        assert {name: each.tolist() for name, each in left.columns.items()} == {
            name: each.tolist() for name, each in right.columns.items()
        }
    for number in range(single.num_segments):
        assert joined.segment(number).tolist() == single.segment(number).tolist()
    for number in range(len(single)):
        assert joined.example(number).tolist() == single.example(number).tolist()
    for name in single.column_names:
        values = np.concatenate([*joined.column(name)])
        assert np.sort(values).tolist() == np.sort(single.columns[name]).tolist()


@pytest.mark.parametrize("is_packed", [True, False])
@given(split_texts(), st.integers(0, 5))
def test_windows_of_parts_are_those_of_one_store(is_packed, texts, seed):
    shape = BatchShape(4, 32, 8, is_packed=is_packed, texts=4)
    cursors: list[Cursor] = [Cursor(), Cursor(3, 0)]
    for cursor in cursors:
        one, other = (PreparedWindows(store, shape, seed, 7).load(cursor) for store in texts)
        assert one.examples.tolist() == other.examples.tolist()
        assert one.order.tolist() == other.order.tolist()
        assert one.plan.documents.tolist() == other.plan.documents.tolist()
