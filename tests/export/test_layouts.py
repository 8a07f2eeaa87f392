"""The two layouts, there and back, bit by bit; and loading either, strictly."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from neobert.errors import ProjectError
from neobert.export import fork_to_hub, hub_to_fork, load_weights
from neobert.export.layouts import drop_tied_decoder, join_gates, split_gates
from tests.refusals import refusal_of


def same_bits(one, other) -> bool:
    """Equal names and equal bytes: NaN and the sign of zero count."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and torch.equal(one[name].contiguous().view(torch.uint8), other[name].contiguous().view(torch.uint8))
        for name in one
    )


def fork_state(blocks: int, width: int, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """A fork's state dict of arbitrary bits: every pattern of bytes, NaN and infinities among them."""
    generator = torch.Generator().manual_seed(seed)

    def bits(rows: int, columns: int) -> torch.Tensor:
        size = rows * columns * dtype.itemsize
        raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        return raw.view(dtype).view(rows, columns)

    state = {"model.encoder.weight": torch.randn(11, 8, generator=generator).to(dtype)}
    for i in range(blocks):
        block = f"model.transformer_encoder.{i}"
        state[f"{block}.qkv.weight"] = bits(24, 8)
        state[f"{block}.ffn.w1.weight"] = bits(width, 8)
        state[f"{block}.ffn.w2.weight"] = bits(width, 8)
        state[f"{block}.ffn.w3.weight"] = bits(8, width)
    return state


forks = st.builds(
    fork_state,
    blocks=st.integers(1, 3),
    width=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**32),
)


@given(fork=forks)
def test_fork_to_hub_and_back_keeps_every_bit(fork):
    hub = fork_to_hub(fork)
    assert not [name for name in hub if ".w1." in name or ".w2." in name]
    assert {"decoder.weight", "decoder.bias"} <= hub.keys()
    assert same_bits(hub_to_fork(hub), fork)
    assert same_bits(fork_to_hub(hub_to_fork(hub)), hub)


@given(fork=forks)
def test_gates_join_and_split_in_their_order(fork):
    joined = join_gates(fork)
    for name in [name for name in joined if name.endswith("w12.weight")]:
        gate, up = (fork[name.replace("w12", half)] for half in ("w1", "w2"))
        assert same_bits({"": joined[name][: len(gate)]}, {"": gate})
        assert same_bits({"": joined[name][len(gate) :]}, {"": up})
    assert same_bits(split_gates(joined), fork)


def test_a_decoder_of_its_own_is_not_dropped():
    hub = fork_to_hub(fork_state(1, 4, torch.float32, seed=0))
    for name in ("decoder.weight", "decoder.bias"):
        changed = {**hub, name: hub[name] + 1}
        with pytest.raises(ProjectError) as caught:
            hub_to_fork(changed)
        assert caught.value.code == "EXP003"
    assert same_bits(drop_tied_decoder(hub), join_gates(fork_state(1, 4, torch.float32, seed=0)))


@pytest.mark.parametrize("half", ["w1", "w2"])
def test_half_a_gate_is_named(half):
    fork = fork_state(1, 4, torch.float32, seed=0)
    del fork[f"model.transformer_encoder.0.ffn.{half}.weight"]
    refusal_of(join_gates, "EXP002", f"transformer_encoder.0.ffn.{half}.weight", fork)


def weights_of(model) -> dict[str, torch.Tensor]:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["decoder.weight"]
    return state


@pytest.mark.parametrize("layout", ["hub", "fork"])
@pytest.mark.parametrize("as_folder", [True, False])
def test_either_layout_loads(make_model, tmp_path, layout, as_folder):
    source, target = make_model(tie_word_embeddings=True), make_model(tie_word_embeddings=True)
    state = weights_of(source) if layout == "hub" else split_gates(weights_of(source))
    save_file(state, tmp_path / "model.safetensors")
    report = load_weights(target, tmp_path if as_folder else tmp_path / "model.safetensors")
    assert same_bits(target.state_dict(), source.state_dict())
    assert target.decoder.weight is target.model.encoder.weight
    assert (report.layout, report.num_tensors, report.dtypes) == (
        layout,
        len(weights_of(source)),
        ("float32",),
    )
    assert report.num_parameters == sum(p.numel() for p in source.parameters())


def test_saved_rotations_are_left_out(make_model, tmp_path):
    source, target = make_model(), make_model()
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    save_file(state | {"model.freqs_cis": torch.ones(32, 2, 2)}, tmp_path / "model.safetensors")
    load_weights(target, tmp_path)
    assert all(torch.equal(each, state[name]) for name, each in target.state_dict().items())


def test_a_second_spelling_of_the_tied_matrix_is_taken_for_what_it_is(make_model, tmp_path):
    source, target = make_model(tie_word_embeddings=True), make_model(tie_word_embeddings=True)
    state = weights_of(source)
    save_file(
        {**state, "decoder.weight": state["model.encoder.weight"].clone()}, tmp_path / "model.safetensors"
    )
    load_weights(target, tmp_path)
    assert same_bits(target.state_dict(), source.state_dict())


def test_shards_load(make_model, tmp_path):
    source, target = make_model(), make_model()
    source.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    load_weights(target, tmp_path)
    assert same_bits(target.state_dict(), source.state_dict())


def refusal(model, state, folder) -> ProjectError:
    """The error of a load, after making sure that the model was left alone."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ProjectError) as caught:
        load_weights(model, folder)
    assert same_bits(model.state_dict(), before)
    assert caught.value.place == str(folder)
    return caught.value


def test_a_missing_and_an_unexpected_tensor_are_both_named(make_model, tmp_path):
    state = weights_of(make_model())
    state["model.layer_norm.bias"] = state.pop("model.layer_norm.weight")
    error = refusal(make_model(), state, tmp_path)
    assert "missing model.layer_norm.weight" in error.message
    assert "unexpected model.layer_norm.bias" in error.message


def test_another_vocabulary_is_a_shape(make_model, tmp_path):
    error = refusal(make_model(vocab_size=128), weights_of(make_model()), tmp_path)
    assert "decoder.weight (64, 32), expected (128, 32)" in error.message
    assert "model.vocab_size" in error.hint
    error = refusal(make_model(hidden_size=64), weights_of(make_model()), tmp_path)
    assert error.hint == "set the keys of section model to the values in the checkpoint's config.json", (
        "all shapes differ"
    )


def test_a_tied_checkpoint_for_an_untied_model(make_model, tmp_path):
    error = refusal(make_model(), weights_of(make_model(tie_word_embeddings=True)), tmp_path)
    assert error.hint == "set model.tie_word_embeddings to true: the checkpoint's decoder is its embedding"


def test_an_untied_checkpoint_for_a_tied_model(make_model, tmp_path):
    error = refusal(make_model(tie_word_embeddings=True), weights_of(make_model()), tmp_path)
    assert error.code == "EXP003"
    assert error.hint == "set model.tie_word_embeddings to false"


def test_many_missing_tensors_are_counted(make_model, tmp_path):
    error = refusal(make_model(num_hidden_layers=4), weights_of(make_model()), tmp_path)
    assert "and 7 more" in error.message


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\xff" * 64])
def test_a_file_that_is_no_checkpoint(make_model, tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    refusal_of(load_weights, "EXP004", "not a readable safetensors file", make_model(), tmp_path)


@pytest.mark.parametrize("kind", [".weight", ".bias"])
def test_quantized_weights_are_refused(kind, make_model, tmp_path):
    state = weights_of(make_model())
    name = next(name for name in state if name.endswith(kind))
    save_file(state | {name: state[name].to(torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ProjectError, match=f"{name} has type I8: quantized weights are not read"):
        load_weights(make_model(), tmp_path)


@pytest.mark.parametrize(
    "index", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": [5]}}']
)
def test_an_index_that_names_no_shards(make_model, tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    refusal_of(load_weights, "EXP004", "invalid index of shards", make_model(), tmp_path)


def test_a_folder_of_pickles_and_no_folder(make_model, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ProjectError) as caught:
            load_weights(make_model(), path)
        assert "pickled weights" in caught.value.hint


@pytest.mark.parametrize("name", ["/etc/passwd", "../model.safetensors", "..", "a/b.safetensors"])
def test_an_index_names_nothing_outside_of_its_folder(make_model, tmp_path, name):
    index = {"weight_map": {"model.encoder.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refusal_of(load_weights, "EXP004", "outside its folder", make_model(), tmp_path)
