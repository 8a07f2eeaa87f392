"""Peers of continued pretraining: same text, a given number of masked tokens, and ratios by their names."""

from typing import Any

import against_trainer
import contrastive_speed
import made_up_run
import pytest
import torch
from peers import trainer_arm, turn_taking
from transformers import ModernBertConfig, ModernBertForMaskedLM

from neobert.data.store.prepare import prepare

TOKENS = 512


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Packed rows of made-up documents, and the collator of the peer."""
    work = tmp_path_factory.mktemp("text")
    made_up_run.write_text(work, made_up_run.TINY)
    prepared = prepare(made_up_run.run_config(work, work / "run", made_up_run.TINY, steps=4))
    packed = trainer_arm.PackedRows(prepared, TOKENS)
    tokenizer = prepared.tokenizer.tokenizer
    return packed, trainer_arm.PackingCollator(tokenizer, 0.3, 1024, packed.max_documents), tokenizer


def test_every_packed_row_has_the_same_shapes_and_number_of_masked_tokens(rows):
    packed, collate, tokenizer = rows
    batches = [collate([packed[index]]) for index in range(4)]
    assert {len(batch["cu_seq_lens_q"]) for batch in batches} == {packed.max_documents + 1}
    for batch in batches:
        is_target = batch["labels"][0] != trainer_arm.IGNORED
        assert int(is_target.sum()) == int(0.3 * TOKENS)
        assert not torch.isin(batch["labels"][0][is_target], torch.tensor(tokenizer.all_special_ids)).any()
        starts = batch["cu_seq_lens_q"][:-1].unique()
        assert set(starts.tolist()) - {TOKENS} == set(
            (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
        )


def test_documents_of_a_packed_row_are_isolated_and_have_their_windows(rows):
    packed, collate, _ = rows
    batch = collate([packed[0]])
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 1}
    config = ModernBertConfig(**sizes, local_attention=8, vocab_size=30_592, **ids)
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(config).eval()
    first = int(batch["cu_seq_lens_q"][1])
    alone = model.model(batch["input_ids"][:, :first]).last_hidden_state
    model.config._attn_implementation = "bench_varlen"
    given = {name: value for name, value in batch.items() if name not in ("labels", "num_tokens")}
    together = model.model(**given).last_hidden_state[:, :first]
    assert torch.allclose(alone, together, atol=1e-5)


class Contender:
    """Answers as a child whose compiler has made this many graphs."""

    def __init__(self, graphs: int) -> None:
        self.graphs = graphs

    def send(self, steps: int) -> None:
        pass

    def receive(self) -> dict[str, Any]:
        return self.call(1)

    def call(self, steps: int, *, is_profiled: bool = False) -> dict[str, Any]:
        kernels = {"kernels": {"attention": {}}, "refused": ""} if is_profiled else {}
        return {"steps": steps, "seconds": 1.0, "tokens": 8, "graphs": self.graphs, **kernels}


def test_an_arm_that_is_to_compile_and_has_no_graph_is_an_error():
    children = {"ours": 0, "ours, compiled": 3, "sorted, compiled": 0}
    notes = against_trainer.warm_up({name: Contender(graphs) for name, graphs in children.items()})
    assert {name: note.get("error") for name, note in notes.items()} == {
        "ours": None,
        "ours, compiled": None,
        "sorted, compiled": "nothing was compiled",
    }


def test_graphs_are_counted_when_a_compiled_function_is_called():
    before = turn_taking.count_compiled_graphs()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    assert turn_taking.count_compiled_graphs() == before
    compiled(torch.ones(2))
    assert turn_taking.count_compiled_graphs() == before + 1


def test_a_compiled_arm_is_compared_where_a_compiled_peer_ran():
    rates = {"ours": 100, "ours, compiled": 150, "sorted": 80, "unpadded": 50, "unpadded, compiled": 60}
    found = contrastive_speed.add_sample_rates({"tokens_per_second": rates}, 10.0)
    assert found["against"] == {
        "ours": {"padded": 1.25, "unpadded": 2.0},
        "ours, compiled": {"unpadded": 2.5},
    }


def test_ratios_are_of_the_best_forms_and_of_the_defaults():
    def turns(rate: float) -> list[dict[str, float]]:
        return [{"tokens": rate, "seconds": 1.0, "steps": 1}] * 2

    names = {"ours": 100, "ours, compiled": 150, "default": 50, "packed, compiled": 120}
    found = against_trainer.throughput_figures({name: turns(rate) for name, rate in names.items()})["ratios"]
    assert (found["best"]["ratio"], found["best"]["peer"]) == (1.25, "packed, compiled")
    assert found["default"]["ratio"] == 2.0
