"""Weights that are written a file at a time load as those written at once."""

import weakref
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from neobert.export import lazy_weights
from neobert.export.folder import write_hf_folder
from neobert.export.lazy_weights import LazyWeights, write_lazily
from neobert.export.weights import unique_weights
from neobert.training.checkpoint.parts import PARTS, open_joined_parts
from tests.families.test_decoders import build


@pytest.mark.parametrize(("file_bytes", "count"), [(10**9, 1), (30_000, 4)])
def test_transformers_loads_them_bit_for_bit(file_bytes, count, tmp_path, monkeypatch):
    monkeypatch.setattr(lazy_weights, "FILE_BYTES", file_bytes)
    model = build("qwen2", tmp_path).model  # tied: one name for two weights
    own = unique_weights(model)
    sizes = {name: each.nbytes for name, each in own.items()}
    lazy = LazyWeights({name: partial(own.__getitem__, name) for name in own}, sizes)
    write_hf_folder(model, None, tmp_path / "lazy", lazy)
    files = sorted(path.name for path in (tmp_path / "lazy").glob("*.safetensors"))
    numbered = [f"model-{number + 1:05}-of-{len(files):05}.safetensors" for number in range(len(files))]
    assert files == (["model.safetensors"] if count == 1 else numbered)
    assert len(files) >= count
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "lazy", output_loading_info=True)
    assert not any(report.values())
    assert all(torch.equal(each, own[name]) for name, each in unique_weights(loaded).items())
    if count == 1:
        write_hf_folder(model, None, tmp_path / "whole")
        one, other = (tmp_path / name / "model.safetensors" for name in ("lazy", "whole"))
        assert one.read_bytes() == other.read_bytes()


def test_the_weights_of_one_file_are_in_memory_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(lazy_weights, "FILE_BYTES", 3 * 400)
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def compute() -> torch.Tensor:
        nonlocal most
        weight = torch.ones(100)
        alive.add(weight)
        most = max(most, len(alive))
        return weight

    names = [f"weight {number}" for number in range(12)]
    write_lazily(LazyWeights(dict.fromkeys(names, compute), dict.fromkeys(names, 400)), tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    assert most == 3


def test_the_sizes_of_joined_parts_are_those_of_all_ranks(tmp_path):
    """A file of the weights has at most `FILE_BYTES` by these sizes."""
    (tmp_path / PARTS).mkdir()
    for rank, rows in enumerate((3, 2)):
        part = {"weight": torch.full((rows, 4), float(rank))} | ({} if rank else {"bias": torch.zeros(4)})
        save_file(part, tmp_path / PARTS / f"{rank:05}-00000.safetensors")
    joined = open_joined_parts(tmp_path, ["weight", "bias"])
    assert joined.sizes == {name: each.nbytes for name, each in joined.items()} == {"weight": 80, "bias": 16}
