"""Names, sizes, initial values, tying, the configuration, and starting without memory."""

import json
from dataclasses import fields

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from neobert.config.schema import ModelConfig
from neobert.model import (
    NeoBERT,
    NeoBERTConfig,
    NeoBERTLMHead,
    build_model_config,
)

BLOCK = ("qkv", "wo", "ffn.w12", "ffn.w3", "attention_norm", "ffn_norm")

PUBLISHED_CONFIG = {
    "architectures": ["NeoBERTLMHead"],
    "classifier_init_range": 0.02,
    "decoder_init_range": 0.02,
    "dim_head": 64,
    "embedding_init_range": 0.02,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "kwargs": {"trust_remote_code": True},
    "max_length": 4096,
    "model_type": "neobert",
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "transformers_version": "4.48.2",
    "vocab_size": 30522,
}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, 245_136_954),
        ({"tie_word_embeddings": True}, 221_665_536),
        ({"tie_word_embeddings": True, "num_hidden_layers": 12, "vocab_size": 30_592}, 108_448_512),
    ],
)
def test_published_sizes(changes, wanted):
    with torch.device("meta"):
        model = NeoBERTLMHead(NeoBERTConfig(**changes))
    assert sum(p.numel() for p in model.parameters()) == wanted


@pytest.mark.parametrize(("nominal", "width"), [(3072, 2048), (768, 512), (49, 32), (100, 72), (4096, 2736)])
def test_the_gated_width_is_two_thirds_rounded_up_to_eight(nominal, width):
    assert NeoBERTConfig(intermediate_size=nominal).ffn_width == width
    assert NeoBERTConfig(intermediate_size=nominal, hidden_act="gelu").ffn_width == nominal


def test_published_tensor_names(make_model):
    blocks = [f"model.transformer_encoder.{i}.{part}.weight" for i in range(3) for part in BLOCK]
    wanted = {"model.encoder.weight", *blocks, "model.layer_norm.weight", "decoder.weight", "decoder.bias"}
    assert set(make_model().state_dict()) == wanted
    assert set(make_model(tie_word_embeddings=True).state_dict()) == wanted - {"decoder.bias"}


def test_layer_norm_keeps_the_names_and_adds_biases(make_model):
    rms, layer = make_model().state_dict(), make_model(rms_norm=False).state_dict()
    added = set(layer) - set(rms)
    assert set(rms) <= set(layer)
    assert {name.rsplit(".", 2)[-2] for name in added} == {"attention_norm", "ffn_norm", "layer_norm"}
    assert all(name.endswith(".bias") for name in added)


@pytest.mark.parametrize("tied", [True, False])
def test_initial_values(make_model, tied):
    model = make_model(
        tie_word_embeddings=tied, embedding_init_range=0.5, decoder_init_range=0.1, pad_token_id=3
    )
    embedding = model.model.encoder.weight
    assert embedding[3].eq(0).all()
    assert 0.45 < embedding.abs().max() <= 0.5
    qkv = model.model.transformer_encoder[0].qkv.weight
    assert 0.095 < qkv.abs().max() <= 0.1
    assert abs(float(qkv.detach().std()) - 0.1 / 3**0.5) < 0.003
    assert model.model.layer_norm.weight.eq(1).all()
    if not tied:
        assert 0.095 < model.decoder.weight.abs().max() <= 0.1
        assert model.decoder.bias.eq(0).all()


def shaped(**changes):
    """A model whose matrices have enough weights for a standard deviation to be known within 1 %."""
    shape = {"hidden_size": 128, "intermediate_size": 192, "vocab_size": 1024, "num_attention_heads": 4}
    return NeoBERTConfig(**{**shape, "num_hidden_layers": 3, "init": "scaled"} | changes)


@pytest.mark.parametrize(
    "changes", [{}, {"hidden_act": "gelu"}, {"tie_word_embeddings": True}, {"rms_norm": False}]
)
def test_scaled_weights_are_truncated_normals_with_smaller_residual_outputs(changes):
    config = shaped(**changes)
    model = NeoBERTLMHead(config)
    expected = 0.02 * (1 - 2 * 3 * 0.0044318 / 0.9973002) ** 0.5  # standard deviation of what the cut leaves
    for name, weight in model.named_parameters():
        weight = weight.detach()
        if weight.ndim == 1:
            assert weight.eq(0 if name.endswith("bias") else 1).all(), name
            continue
        divisor = 6**0.5 if name.rsplit(".", 2)[-2] in ("wo", "w3") or ".ffn.2." in name else 1
        drawn = weight[1:] if "encoder.weight" in name or config.tie_word_embeddings else weight
        assert float(drawn.std()) * divisor == pytest.approx(expected, rel=0.02), name
        assert float(drawn.abs().max()) * divisor <= 3 * 0.02 * (1 + 1e-5), name
        assert abs(float(drawn.mean())) * divisor < 0.0005, name
        assert float((drawn.abs() * divisor < 0.02).double().mean()) == pytest.approx(0.6845, abs=0.02), name


def test_scaled_weights_are_the_seeds():
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        states.append(NeoBERTLMHead(shaped()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    wo = "model.transformer_encoder.2.wo.weight"
    assert float(states[2][wo].std()) == pytest.approx(float(states[0][wo].std()), rel=0.02)
    assert not torch.equal(states[2][wo], states[0][wo])


def test_scaled_weights_that_were_loaded_stay(tmp_path):
    model = NeoBERTLMHead(shaped())
    model.save_pretrained(tmp_path)
    loaded = NeoBERTLMHead.from_pretrained(tmp_path)
    assert loaded.config.init == "scaled"
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    narrow = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    wo = narrow.model.transformer_encoder[2].wo.weight
    assert torch.equal(wo, model.model.transformer_encoder[2].wo.weight.to(torch.bfloat16))
    torch.manual_seed(0)
    assert NeoBERT._from_config(shaped(), dtype=torch.bfloat16).encoder.weight.abs().max() < 0.0602


def test_published_weights_are_what_they_were():
    """Uniform draws, module by module in the order of construction, from the model's own generator."""
    config = shaped(init="published", decoder_init_range=0.03, rope=False, max_position_embeddings=32)
    model = NeoBERTLMHead(config)
    for module in model.modules():
        module._is_hf_initialized = False
    torch.manual_seed(7)
    model.initialize_weights()
    torch.manual_seed(7)
    for module in model.modules():  # in the order of their names, as leaves come
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            limit = 0.03 if isinstance(module, torch.nn.Linear) else 0.02
            wanted = torch.empty_like(module.weight).uniform_(-limit, limit)
            if module is model.model.encoder:
                wanted[0] = 0
            assert torch.equal(module.weight, wanted)


def test_the_initial_loss_is_that_of_guessing(make_model):
    model = make_model(embedding_init_range=0.02, decoder_init_range=0.02)
    ids = torch.randint(5, 96, (4, 32))
    assert abs(float(model(ids, labels=ids).loss.detach()) - torch.log(torch.tensor(96.0))) < 0.1


def test_tying_shares_memory_and_survives_a_step(make_model):
    model = make_model(tie_word_embeddings=True)
    ids = torch.randint(5, 96, (2, 8))
    model(ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert model.decoder.weight.data_ptr() == model.model.encoder.weight.data_ptr()
    assert model.decoder.bias is None
    free = make_model()
    assert free.decoder.weight.data_ptr() != free.model.encoder.weight.data_ptr()


def test_the_published_configuration_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_CONFIG))
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, NeoBERTConfig)
    assert config.max_position_embeddings == 4096
    assert config.tie_word_embeddings is False
    assert config.norm_eps == 1e-5
    assert (config.dim_head, config.ffn_width) == (64, 2048)


def test_every_field_is_written_even_at_its_default(tmp_path):
    NeoBERTConfig().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    fields = set(NeoBERTConfig.__init__.__code__.co_varnames[1 : NeoBERTConfig.__init__.__code__.co_argcount])
    assert fields <= set(written)
    assert written["norm_eps"] == 1e-5
    assert written["tie_word_embeddings"] is False
    assert written["model_type"] == "neobert"


def test_configuration_round_trip(tmp_path, make_config):
    config = make_config(rope_theta=500.0, tie_word_embeddings=True, pooling="avg", norm_eps=1e-6, rope=False,
        embedding_multiplier=3.0,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "does not divide"),
        ({"hidden_size": 12, "num_attention_heads": 4}, "even head size"),
        ({"dim_head": 16}, "dim_head is 16"),
        ({"hidden_act": "relu"}, "swiglu, gelu"),
        ({"pooling": "mean"}, "avg, cls, max"),
        ({"init": "orthogonal"}, "published, scaled"),
        ({"attn_backend": "flash"}, "flash_attn_varlen"),
        ({"kernel_backend": "auto"}, "torch, liger"),
    ],
)
def test_impossible_configurations_are_refused(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_the_section_model_is_carried_over_whole():
    section = ModelConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=77,
        rope=False,
        rope_theta=123.0,
        embedding_multiplier=4.0,
        rms_norm=False,
        norm_eps=1e-6,
        hidden_act="gelu",
        dropout=0.2,
        tie_word_embeddings=True,
        embedding_init_range=0.3,
        decoder_init_range=0.4,
        kernel_backend="torch",
    )
    config = build_model_config(section, vocab_size=128, pad_token_id=7, attn_backend="sdpa")
    run_only = {"type", "vocab_size", "attn_backend", "pretrained_checkpoint", "revision"}
    for name in {field.name for field in fields(ModelConfig)} - run_only:
        of_model = "hidden_dropout_prob" if name == "dropout" else name
        assert getattr(config, of_model) == getattr(section, name), name
    assert (config.vocab_size, config.pad_token_id, config.attn_backend) == (128, 7, "sdpa")


def test_the_vocabulary_can_grow(make_model):
    model = make_model(tie_word_embeddings=True)
    model.resize_token_embeddings(128, mean_resizing=False)
    assert model(torch.tensor([[100, 120]])).logits.shape == (1, 2, 128)
    assert model.decoder.weight is model.model.encoder.weight
