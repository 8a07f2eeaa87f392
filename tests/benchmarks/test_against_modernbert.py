"""The peer of the speed contest does the work that it is said to do, and loses no advantage it could have."""

from dataclasses import replace
from itertools import pairwise

import against_modernbert
import made_up_run
import pytest
import torch
from peers import batches, modernbert

from neobert.data.store.prepare import prepare
from neobert.families.neobert.spec import feed_forward_width
from neobert.model import NeoBERTConfig, NeoBERTLMHead

VOCAB, TOKENS = 30_528, 1_024


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
        models = {
            "ours triton": NeoBERTLMHead(config),
            "grouped float32": modernbert.build_modernbert(model, VOCAB, 0),
        }
    found = against_modernbert.model_shapes(models)
    assert feed_forward_width(model) == 2048
    assert found["ours"]["parameters"] == pytest.approx(245e6, rel=0.01)
    assert found["apart"] < 0.005


def test_a_narrower_peer_is_told(text):
    _, config = text
    ours, peer = (modernbert.build_modernbert(config.model, vocabulary, 0) for vocabulary in (1024, 1100))
    found = against_modernbert.model_shapes({"ours torch": ours, "grouped float32": peer})
    assert found["apart"] > against_modernbert.TOLERANCE


@pytest.fixture(scope="module")
def drawn(text):
    """The prepared text, and the batches of each form."""
    prepared = prepare(text[1])
    arguments = (prepared.train, prepared.tokenizer, TOKENS)
    return prepared, {
        "concatenated": list(batches.concatenated_batches(*arguments, 128, "cpu")),
        "grouped": list(batches.grouped_batches(*arguments, 1024, "cpu")),
        "flattened": list(batches.flattened_batches(*arguments, 1024, "cpu")),
    }


def test_padded_rows_are_documents_of_similar_length(drawn):
    lengths = {int(b - a) for a, b in pairwise(drawn[0].train.offsets)}
    grouped = drawn[1]["grouped"]
    for batch in grouped:
        rows, width = batch.inputs["input_ids"].shape
        of_rows = batch.inputs["attention_mask"].sum(-1).flatten().tolist()
        assert width % 64 == 0
        assert rows * width <= TOKENS
        assert max(of_rows) > width - 64
        assert set(of_rows) <= lengths
        assert batch.num_tokens == sum(of_rows)
    widths = [batch.inputs["input_ids"].shape[1] for batch in grouped]
    assert len(set(widths)) > 3
    places = sum(batch.inputs["input_ids"].numel() for batch in grouped)
    assert sum(batch.num_tokens for batch in grouped) > 0.8 * places


def test_every_batch_has_as_many_targets_and_as_many_as_ours(drawn):
    prepared, forms = drawn
    for form in forms.values():
        targets = [int((batch.inputs["labels"] != -100).sum()) for batch in form]
        assert len(set(targets)) == 1
        assert targets[0] == int(0.2 * min(batch.num_tokens for batch in form))
        for batch in form:
            is_target = batch.inputs["labels"] != -100
            assert (batch.inputs["input_ids"][is_target] == prepared.tokenizer.mask_id).all()
            assert (batch.inputs["labels"][is_target] != prepared.tokenizer.pad_id).all()


def test_full_rows_need_no_mask(drawn):
    full = drawn[1]["concatenated"]
    assert all("attention_mask" not in batch.inputs and batch.num_tokens == TOKENS for batch in full)


def test_a_packed_row_has_the_boundaries_of_its_documents(drawn):
    prepared, forms = drawn
    for index, batch in enumerate(forms["flattened"]):
        bounds = batch.inputs["cu_seq_lens_q"].unique().tolist()
        first = index * TOKENS
        inside = [int(each) - first for each in prepared.train.offsets if first < each < first + TOKENS]
        assert bounds == [0, *inside, TOKENS]
        positions = batch.inputs["position_ids"][0]
        assert (positions == 0).nonzero().flatten().tolist() == [0, *inside]


def test_padding_changes_no_loss_of_the_peer(drawn, text):
    """The mask reaches the peer's attention: other padding, same loss."""
    torch.manual_seed(0)
    peer, batch = (
        modernbert.build_modernbert(text[1].model, 30_592, 0, "bench_sdpa").eval(),
        drawn[1]["grouped"][-1],
    )
    inputs = {name: value[:4] for name, value in batch.inputs.items()}
    before = peer(**inputs).loss
    is_padding = ~inputs["attention_mask"][:, 0, 0]
    assert is_padding.any()
    changed = inputs | {"input_ids": inputs["input_ids"].masked_fill(is_padding, 77)}
    assert peer(**changed).loss.item() == pytest.approx(before.item(), rel=1e-5)


@pytest.mark.e2e
def test_the_contest_on_a_cpu(text, tmp_path):
    """Without the compiler: tracing the peers takes longer than all the rest."""
    work, _ = text
    size = replace(made_up_run.TINY, num_layers=1, hidden_size=64)
    names = ["concatenated float32", "grouped bfloat16"]
    with torch.compiler.set_stance("force_eager"):
        found = against_modernbert.compare_throughput(work, size, 1, 0.0, "eager", ["torch"], names)
    assert set(found["rates"]) == {"ours torch", *names}
    assert all(len(values) == 1 and min(values) > 0 for values in found["rates"].values())
    assert not any("error" in note for note in found["notes"].values())
    assert found["candidates"]["grouped"]["fastest"] == "flash"
    assert set(found["peer_kernels"]) == set(names)
    assert all("flash" in kernels["attention"] for kernels in found["peer_kernels"].values())
    assert "ours torch / grouped bfloat16 (grouped)" in against_modernbert.format_table(found)
    against_modernbert.write_figures(tmp_path, found.pop("figures"), found, is_complete=True)
    assert {path.stem for path in tmp_path.iterdir()} == {"vs-hf-concatenated", "vs-hf-padded"}


def test_a_peer_that_fails_leaves_the_others():
    def broken():
        raise RuntimeError("planted")

    builders = {"grouped float32": broken, "ours torch": lambda: lambda: 5}
    steps, notes = against_modernbert.warm_up(builders, 1)
    assert list(steps) == ["ours torch"]
    assert "planted" in notes["grouped float32"]["error"]


def test_a_peer_with_dense_attention_is_not_measured(drawn, text):
    peer, batch = modernbert.build_modernbert(text[1].model, 30_592, 0, "eager"), drawn[1]["concatenated"][0]

    def step():
        peer(**batch.inputs).loss.backward()
        return batch.num_tokens

    steps, notes = against_modernbert.warm_up({"concatenated float32": lambda: step}, 2)
    assert steps == {}
    assert "DenseAttentionError" in notes["concatenated float32"]["error"]


def test_the_ratio_is_to_the_faster_peer():
    rates = {
        "ours triton": [90, 100, 110],
        "ours torch": [50, 60, 70],
        "grouped float32": [10, 10, 10],
        "grouped bfloat16": [20, 25, 22],
    }
    found = against_modernbert.rate_figures(rates)
    assert (found["grouped"]["peer"], found["grouped"]["ratio"]) == ("grouped bfloat16", 4.5)
    assert found["grouped"]["ratios"]["ours torch"] == {"median": 2.5, "least": 2.4, "greatest": 3.1818}
    assert "concatenated" not in found
