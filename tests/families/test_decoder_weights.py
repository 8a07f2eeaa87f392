"""Headers of the weights of causal models, before a launch: what fits, and what the trainer would refuse."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.families.hf.initial_weights import describe_loading, refuse_other_weights
from tests.families.layouts import DECODERS
from tests.families.test_decoders import build

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def saved(tmp_path):
    """Save a model as transformers does, with changes of its files; return the run that starts from it."""

    def save(architecture="llama", change=lambda weights: weights, **settings):
        build(architecture, tmp_path, **settings).model.save_pretrained(tmp_path)
        file = tmp_path / "model.safetensors"
        save_file(change(load_file(file)), file, {"format": "pt"})
        model = {"type": "hf", "pretrained_checkpoint": str(tmp_path)}
        return from_dict({"task": "causal", "model": model}), tmp_path

    return save


@pytest.mark.parametrize("architecture", DECODERS)
def test_weights_as_transformers_saves_them_are_accepted(architecture, saved):
    config, folder = saved(architecture)
    refuse_other_weights(config, folder)
    count = len(load_file(folder / "model.safetensors"))
    assert describe_loading(config, folder) == f"{count} tensors loaded"


def refused(config, folder):
    with pytest.raises(ProjectError) as caught:
        refuse_other_weights(config, folder)
    assert caught.value.code == "EXP005"
    return caught.value


def test_one_weight_in_two_tensors_is_accepted_if_they_are_equal(saved):
    def with_head(by):
        return lambda weights: weights | {HEAD: weights[EMBEDDING] + by}

    refuse_other_weights(*saved(change=with_head(0.0), tie_word_embeddings=True))
    config, folder = saved(change=with_head(1e-3), tie_word_embeddings=True)
    error = refused(config, folder)
    message = "with different values, but tie_word_embeddings makes them one weight"
    assert error.message == f"the checkpoint has {HEAD}, {EMBEDDING} {message}"
    assert error.hint == f"set tie_word_embeddings to false in config.json of {folder}"
    refuse_other_weights(*saved(change=with_head(1e-3), tie_word_embeddings=False))


def test_half_of_the_type_is_not_the_same_weight(saved):
    change = lambda weights: weights | {HEAD: weights[EMBEDDING].to(torch.bfloat16)}  # noqa: E731
    refused(*saved(change=change, tie_word_embeddings=True))


def test_a_head_of_its_own_that_the_files_lack_is_named(saved):
    def without(weights):
        return {name: each for name, each in weights.items() if name != HEAD}

    config, folder = saved(change=without, tie_word_embeddings=False)
    error = refused(config, folder)
    assert error.message == "the checkpoint lacks weights of the model: lm_head.*"
    assert error.hint.startswith(f"set tie_word_embeddings to true in config.json of {folder}, or ")
    refuse_other_weights(*saved(change=without, tie_word_embeddings=True))
