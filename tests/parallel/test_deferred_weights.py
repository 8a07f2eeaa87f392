"""Models that are built without memory for their weights hold what models with memory hold."""

import subprocess
from pathlib import Path

import pytest
import torch

from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.parallel.deferred_weights import defer_weights
from tests.families.layouts import DECODERS, SMALL
from tests.families.test_decoders import build
from tests.families.test_hf import build as build_encoder
from tests.families.test_hf import described
from tests.parallel.meta_ranks import MODELS, NUM_RANKS


def tied_neobert():
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    return NeoBERTLMHead(NeoBERTConfig(vocab_size=61, tie_word_embeddings=True, **sizes))


def built(architecture, folder):
    if architecture == "neobert":
        return tied_neobert()
    if architecture in DECODERS:
        return build(architecture, folder).model
    return build_encoder(described(folder, architecture)).model


@pytest.mark.parametrize("architecture", ["neobert", *DECODERS, *SMALL])
def test_weights_and_generator_are_those_of_a_model_with_memory(architecture, tmp_path):
    model = built(architecture, tmp_path)
    generator = torch.get_rng_state()
    with defer_weights() as weights:
        deferred = built(architecture, tmp_path)
    assert all(each.is_meta for each in deferred.parameters())
    weights.record_module(deferred)
    filled = {}
    weights.fill(filled.__setitem__)
    assert torch.equal(torch.get_rng_state(), generator)
    wanted = dict(model.named_parameters())
    assert filled.keys() == wanted.keys()
    assert all(torch.equal(filled[name], each) for name, each in wanted.items())
    for (name, one), (other, another) in zip(model.named_buffers(), deferred.named_buffers(), strict=True):
        assert name == other
        assert torch.equal(one, another)


@pytest.mark.parametrize("architecture", [*DECODERS, *SMALL])
def test_no_weight_keeps_what_was_in_memory(architecture, tmp_path, monkeypatch):
    """The layers of torch do not draw their weights: transformers has to fill each of them."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # new memory holds NaN
    try:
        assert torch.empty(3).isnan().all()
        model = built(architecture, tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name, each in model.named_parameters() if each.isnan().any()] == []


def test_buffers_and_ties_that_are_lost_are_refused(tmp_path):
    with defer_weights() as weights:
        model = built("qwen2", tmp_path)
    weights.record_module(model)
    with pytest.raises(RuntimeError, match=r"lost .*embed_tokens.weight"):
        weights.check_nothing_lost(model)
    model.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match=r"lost .*rotary_emb.inv_freq"):
        weights.check_nothing_lost(model)


@pytest.fixture(scope="module")
def found(filled_once, warm_python):
    def fill(folder):
        for name in MODELS:
            (folder / f"{name}-files").mkdir()
            model = build(name, folder / f"{name}-files").model
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.05)
            model.to(torch.bfloat16).save_pretrained(folder / f"{name}-files", max_shard_size="60KB")
        for ranks in (1, NUM_RANKS):
            trained(folder / str(ranks), warm_python, ranks)

    folder = filled_once("meta", fill)
    return {ranks: torch.load(folder / str(ranks) / "found.pt") for ranks in (1, NUM_RANKS)}


def trained(folder: Path, python: str, num_ranks: int, *more: str):
    folder.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [python, *(torchrun if num_ranks > 1 else []), "-m", "tests.parallel.meta_ranks"]
    command += [str(folder), *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert not ended.returncode, ended.stderr
    return torch.load(folder / "found.pt")


@pytest.mark.e2e
@pytest.mark.parametrize("start", ["{}", "{} from files"])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_start_and_train_as_one_does(found, name, start):
    alone, shared = (found[ranks][start.format(name)] for ranks in (1, NUM_RANKS))
    for each in ("begun", "buffers"):
        assert alone[each].keys() == shared[each].keys()
        assert all(torch.equal(shared[each][key], value) for key, value in alone[each].items())
    assert shared["ties"] == alone["ties"]
    assert torch.equal(shared["generator"], alone["generator"])
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert shared["norm"] == pytest.approx(alone["norm"], rel=1e-5)
    assert len(alone["answers"]) == (0 if "files" in start else 4)
    for (kind, value), wanted in zip(shared["answers"], alone["answers"], strict=True):
        assert (kind, value) == (wanted[0], pytest.approx(wanted[1], rel=1e-3))
    for key, weight in alone["ended"].items():
        torch.testing.assert_close(shared["ended"][key], weight, rtol=1e-4, atol=1e-4)


@pytest.mark.e2e
def test_no_rank_gathers_more_than_a_unit(found):
    """At start, in steps and in probes; a model of one unit shows that the count sees what it should."""
    whole = found[NUM_RANKS].pop("llama in one piece")
    assert whole["largest"][0] > 2 * whole["largest"][1]
    for each in found[NUM_RANKS].values():
        gathered, unit = each["largest"]
        assert 0 < gathered <= 1.05 * unit  # shards are padded to equal sizes
        assert each["held"] < 0.36 * sum(weight.numel() for weight in each["begun"].values())


@pytest.mark.e2e
def test_blocks_that_are_gathered_in_bf16_train_as_gathered_in_fp32(tmp_path, warm_python):
    """To the last bit: autocast converts these weights and their gradients anyway."""
    found = trained(tmp_path / "bf16", warm_python, 2, "bf16")
    assert len(set(found["padded"])) == 1  # also where blocks are compiled
    for name in MODELS:
        exact, low = found[name, False], found[name, True]
        assert (low["losses"], low["norm"]) == (exact["losses"], exact["norm"])
        answers = dict(low["answers"])
        assert (answers["isolation"], answers["causal"], answers["positions"]) == (0, 0, 0)
        assert answers["equality"] < 2  # of the rounding of bf16
