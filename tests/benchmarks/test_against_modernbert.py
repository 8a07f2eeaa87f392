"""The peer of the speed contest does the work that it is said to do, and loses no advantage it could have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import against_modernbert
import made_up_run
import modernbert
import pytest
import torch

from neobert.data.store.prepare import prepare
from neobert.families.neobert.spec import feed_forward_width
from neobert.model import NeoBERTConfig, NeoBERTLMHead

VOCAB = 30_528


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with documents of made-up words, and the configuration of a tiny run on it."""
    work = tmp_path_factory.mktemp("text")
    made_up_run.write_text(work, made_up_run.TINY)
    return work, made_up_run.run_config(work, work / "run", made_up_run.TINY, steps=4)


def test_both_models_have_the_same_size_and_work(tmp_path):
    model = made_up_run.run_config(tmp_path, tmp_path, steps=1).model
    config = NeoBERTConfig(
        vocab_size=VOCAB,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
    )
    with torch.device("meta"):
        found = against_modernbert.shapes(NeoBERTLMHead(config), modernbert.build(model, VOCAB, 0))
    assert feed_forward_width(model) == 2048
    assert found["ours"]["parameters"] == pytest.approx(245e6, rel=0.01)
    assert found["apart"] < 0.005


def test_a_narrower_peer_is_told(text):
    _, config = text
    peer = modernbert.build(config.model, 1024, 0)
    wider = against_modernbert.shapes(peer, modernbert.build(config.model, 1100, 0))
    assert wider["apart"] > against_modernbert.TOLERANCE


@pytest.fixture(scope="module")
def batches(text):
    """Both forms of the peer's batches, four rows each."""
    prepared = prepare(text[1])
    width = modernbert.padded_width(prepared.train, 4, 1024)
    padded = list(modernbert.padded(prepared.train, prepared.tokenizer, 4, width, "cpu"))
    full = list(modernbert.concatenated(prepared.train, prepared.tokenizer, 4, 128, "cpu"))
    return prepared, padded, full


def test_padded_rows_are_the_documents(batches):
    prepared, padded, _ = batches
    lengths = [int(b - a) for a, b in pairwise(prepared.train.offsets)]
    width = padded[0].inputs["input_ids"].shape[1]
    assert width % 64 == 0
    wanted = [sum(min(length, width) for length in lengths[i : i + 4]) for i in range(0, 16, 4)]
    assert [batch.num_tokens for batch in padded] == wanted
    assert [int(batch.inputs["attention_mask"].sum()) for batch in padded] == wanted


def test_every_batch_has_as_many_targets_and_as_many_as_ours(batches):
    for form in batches[1:]:
        targets = [int((batch.inputs["labels"] != -100).sum()) for batch in form]
        assert len(set(targets)) == 1
        assert targets[0] == int(0.2 * min(batch.num_tokens for batch in form))
        for batch in form:
            is_target = batch.inputs["labels"] != -100
            assert (batch.inputs["input_ids"][is_target] == batches[0].tokenizer.mask_id).all()
            assert (batch.inputs["labels"][is_target] != batches[0].tokenizer.pad_id).all()


def test_full_rows_need_no_mask(batches):
    full = batches[2]
    assert all(batch.inputs["attention_mask"] is None and batch.num_tokens == 4 * 128 for batch in full)


def test_padding_changes_no_loss_of_the_peer(batches, text):
    """The mask reaches the peer's attention: other padding, same loss."""
    torch.manual_seed(0)
    peer, batch = modernbert.build(text[1].model, 30_592, 0).eval(), batches[1][0]
    before = peer(**batch.inputs).loss
    is_padding = ~batch.inputs["attention_mask"]
    changed = batch.inputs | {"input_ids": batch.inputs["input_ids"].masked_fill(is_padding, 77)}
    assert peer(**changed).loss.item() == pytest.approx(before.item(), rel=1e-5)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(against_modernbert, "PEER_ROWS", {"padded": 2, "concatenated": 2})
    monkeypatch.setattr(against_modernbert, "PACKED_LENGTH", 64)


@pytest.mark.e2e
@pytest.mark.usefixtures("small_batches")
def test_the_contest_on_a_cpu(text):
    """Without the compiler: tracing four peers takes longer than all the rest."""
    work, _ = text
    size = replace(made_up_run.TINY, num_layers=1, hidden_size=64)
    with torch.compiler.set_stance("force_eager"):
        found = against_modernbert.contest(work, size, 1, 0.0, "eager")
    peers = {f"{form} {dtype}" for form in ("padded", "concatenated") for dtype in ("float32", "bfloat16")}
    assert set(found["rates"]) == {"ours", *peers}
    assert all(len(values) == 1 and min(values) > 0 for values in found["rates"].values())
    assert not any("error" in note for note in found["notes"].values())
    for form, figure in found["figures"].items():
        assert figure["peer"].startswith(form)
        assert figure["ratio"] == figure["medians"]["ours"] / figure["medians"][figure["peer"]]


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.usefixtures("small_batches")
def test_a_peer_compiles(text):
    config = text[1]
    config = replace(config, model=replace(config.model, num_hidden_layers=1))
    step = against_modernbert.build_peers(config, "cpu", "eager", ["float32"])["padded float32"]()
    assert step() > 0
    assert step.loss.isfinite()


def test_a_peer_that_fails_leaves_the_others():
    def broken():
        raise RuntimeError("planted")

    steps, notes = against_modernbert.warm_up({"a": broken, "b": lambda: lambda: 5})
    assert list(steps) == ["b"]
    assert "planted" in notes["a"]["error"]


def test_the_ratio_is_to_the_faster_peer():
    rates = {"ours": [90, 100, 110], "padded float32": [10, 10, 10], "padded bfloat16": [20, 25, 30]}
    found = against_modernbert.figures(rates)
    assert (found["padded"]["peer"], found["padded"]["ratio"]) == ("padded bfloat16", 4.0)
    assert found["concatenated"]["ratio"] is None
