"""Shapes against what transformers builds and torch counts."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from neobert.config.schema import (
    DataCollatorConfig,
    DatasetConfig,
    HfModelConfig,
    ModelConfig,
    RunConfig,
    TrainerConfig,
)
from neobert.errors import ProjectError
from neobert.families.attention import AttentionSpec, Window
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.neobert.spec import NEOBERT
from neobert.families.table import model_shape
from neobert.plan.memory import activation_bytes
from tests.families.layouts import DECODERS, PACKED, RELEASED, SMALL
from tests.kept_memory import counting_kept

SMALL_OF = SMALL | DECODERS
VOCAB_SIZE, ROWS, LENGTH = 256, 3, 48
IDS = {f"{role}_token_id": 0 for role in ("pad", "bos", "eos", "cls", "sep")}
SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 96}


def described(folder, **values):
    """Return the run of a config.json with these values."""
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return RunConfig(
        model=HfModelConfig(config=str(folder)),
        datacollator=DataCollatorConfig(pack_sequences=False),
        dataset=DatasetConfig(max_seq_length=LENGTH),
        trainer=TrainerConfig(mixed_precision="no"),
    )


def real(attention="sdpa", **values):
    config = AutoConfig.for_model(**{"vocab_size": VOCAB_SIZE, **IDS, **values})
    auto_class = AutoModelForCausalLM if values["model_type"] in DECODERS else AutoModelForMaskedLM
    return auto_class.from_config(config, attn_implementation=attention).train()


@pytest.mark.parametrize(
    "values",
    [
        *(pytest.param(values, id=name) for name, values in RELEASED.items()),
        {"model_type": "bert", "max_position_embeddings": 77},
        {"model_type": "bert", "type_vocab_size": 5, "tie_word_embeddings": False, **SIZES},
        *({"model_type": name, "tie_word_embeddings": False, **SMALL[name]} for name in SMALL),
        *({"model_type": name, **DECODERS[name]} for name in DECODERS),
        *({"model_type": name, "tie_word_embeddings": False} for name in DECODERS),
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 16, **SIZES},
        {"model_type": "modernbert", "tie_word_embeddings": False, "decoder_bias": False, **SIZES},
        {"model_type": "modernbert", "norm_bias": True, "attention_bias": True, "mlp_bias": True, **SIZES},
        {"model_type": "modernbert", "classifier_bias": True, "global_attn_every_n_layers": 2, **SIZES},
        {"model_type": "eurobert", "attention_bias": True, "mlp_bias": True, "head_dim": 16, **SIZES},
        {"model_type": "deberta-v2", **SMALL["deberta-v2"], "share_att_key": False, "position_buckets": -1},
        {"model_type": "deberta-v2", **SIZES},
    ],
    ids=str,
)
def test_every_parameter_of_a_transformers_model_is_counted(tmp_path, values):
    name = ARCHITECTURES[values["model_type"]].setting_name("max_position_embeddings")
    positions = {name: 512} | values
    with torch.device("meta"):
        parameters = {id(each): each.numel() for each in real("eager", **positions).parameters()}
    shape = model_shape(described(tmp_path, **positions), values.get("vocab_size", VOCAB_SIZE))
    assert shape.parameters.total == sum(parameters.values())
    is_after_padding = values["model_type"] in ("roberta", "xlm-roberta", "camembert", "mpnet")
    assert shape.max_positions == positions[name] - (2 if is_after_padding else 0)


@pytest.mark.parametrize("architecture", [*SMALL, *DECODERS])
def test_flops_are_those_that_torch_counts(tmp_path, architecture):
    """torch counts every pair: also those of later tokens, and those outside a window."""
    values = {"model_type": architecture, "max_position_embeddings": LENGTH + 2, **SMALL_OF[architecture]}
    model = real("eager", **values)  # torch does not count the SDPA of a CPU
    ids = torch.randint(VOCAB_SIZE, (ROWS, LENGTH))
    counter = FlopCounterMode(display=False)
    with counter:
        model(input_ids=ids).logits.float().sum().backward()
    shape = model_shape(described(tmp_path, **values), VOCAB_SIZE)
    shape = replace(shape, attention=replace(shape.attention, direction="bidirectional", window=None))
    expected = shape.block_flops([LENGTH] * ROWS) + 6 * shape.decoder_products * ROWS * LENGTH
    if architecture == "deberta-v2":
        # Once per microbatch, and not counted: queries and keys of the 16 positions.
        expected += 6 * 3 * 2 * 16 * shape.hidden_size**2
    assert counter.get_total_flops() == expected


@given(
    st.lists(st.integers(1, 40), max_size=4), st.integers(0, 50), st.sampled_from(["bidirectional", "causal"])
)
def test_a_window_counts_the_pairs_inside(lengths, reach, direction):
    shape = model_shape(RunConfig(model=ModelConfig(num_hidden_layers=3)), VOCAB_SIZE)
    attention = replace(shape.attention, direction=direction, window=Window((0, 2), reach))
    shape = replace(shape, attention=attention)
    near = sum(
        abs(query - key) <= reach and (key <= query or direction == "bidirectional")
        for length in lengths
        for query in range(length)
        for key in range(length)
    )
    whole = sum(
        length * length if direction == "bidirectional" else length * (length + 1) // 2 for length in lengths
    )
    assert shape.attended_pairs(lengths) == 2 * near + whole


def test_equal_segments_and_equal_blocks_are_counted_once(monkeypatch):
    counted, num_pairs = [], AttentionSpec.num_attended_pairs
    monkeypatch.setattr(AttentionSpec, "num_attended_pairs", lambda *of: counted.append(of) or num_pairs(*of))
    shape = model_shape(RunConfig(model=ModelConfig(num_hidden_layers=12)), VOCAB_SIZE)
    assert shape.attended_pairs([64] * 512 + [10]) == 12 * (512 * 64**2 + 10**2)
    assert len(counted) == 2


def kept_bytes(config, values, attention):
    model = real(attention, **values)
    ids = torch.randint(VOCAB_SIZE, (ROWS, LENGTH))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, -3:] = False
    is_half = config.trainer.mixed_precision == "bf16"
    with counting_kept(model) as kept, torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        model.base_model(input_ids=ids, attention_mask=mask)
    return sum(kept.values())


def of_depth(architecture, depth):
    """Sizes at which the vectors are no tenth of a block's activations, without dropout of attention.

    With it, SDPA has no fused kernel on a CPU; a card has one. After the projection of an ELECTRA's narrow
    embeddings, the norms of a CPU stay in bf16, and those of a card do not.
    """
    if architecture == "distilbert":
        return {"dim": 64, "n_heads": 2, "hidden_dim": 96, "n_layers": depth, "attention_dropout": 0.0}
    without = {"attention_probs_dropout_prob": 0.0, "embedding_size": 64}
    own = {"eurobert": {"num_attention_heads": 4}, "modernbert": {}}.get(architecture, without)
    if architecture == "gpt2":
        return {"n_embd": 64, "n_head": 2, "n_inner": 96, "n_layer": depth}
    if architecture == "opt":
        own = {"word_embed_proj_dim": 64, "ffn_dim": 96}
    elif architecture in DECODERS:
        own = {"num_key_value_heads": 1}
    return SIZES | {"num_hidden_layers": depth} | own


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize(
    ("architecture", "attention"),
    [(name, "sdpa" if name in PACKED else "eager") for name in SMALL]
    + [("modernbert", "eager"), *((name, "eager" if name == "gemma2" else "sdpa") for name in DECODERS)],
)
def test_kept_activations_grow_with_depth_as_predicted(tmp_path, architecture, attention, precision):
    """A difference of depths leaves out what is kept once; bf16 copies of weights count as weights."""
    measured, predicted = {}, {}
    for depth in (2, 5):
        values = {"model_type": architecture, **SMALL_OF[architecture], **of_depth(architecture, depth)}
        config = described(tmp_path, **values)
        config = replace(
            config,
            model=replace(config.model, attention=attention),
            trainer=replace(config.trainer, mixed_precision=precision),
        )
        shape = model_shape(config, VOCAB_SIZE)
        copies = 2 * shape.parameters.linear if precision == "bf16" else 0
        measured[depth] = kept_bytes(config, values, attention) - copies
        predicted[depth] = activation_bytes(config, shape, "torch") * ROWS * LENGTH
    assert predicted[5] - predicted[2] == pytest.approx(measured[5] - measured[2], rel=0.11)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[1]", "is not a JSON object"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        (" " * (2**20 + 1), "is larger than 1 MiB"),
        (
            '{"model_type": "albert"}',
            "albert is not supported: model.type hf trains models of type bert, modernbert, roberta, "
            "xlm-roberta, camembert, distilbert, electra, eurobert, mpnet, deberta-v2, llama, qwen2, ",
        ),
        ("{}", "model_type is missing"),
        ('{"model_type": "bert", "hidden_size": true}', "hidden_size is true, expected a positive integer"),
        ('{"model_type": "bert", "hidden_size": 1e3}', "hidden_size is 1000.0, expected a positive integer"),
        ('{"model_type": "bert", "num_hidden_layers": 0}', "num_hidden_layers is 0"),
        ('{"model_type": "bert", "num_hidden_layers": 2147483648}', "an integer below 2,147,483,648"),
        ('{"model_type": "modernbert", "num_hidden_layers": 2147483647}', "integer of at most 10,000"),
        ('{"model_type": "gpt2", "n_layer": 10001}', "n_layer is 10001, expected a positive integer of at"),
        ('{"model_type": "bert", "is_decoder": true}', "attend in both directions"),
        ('{"model_type": "modernbert", "layer_types": ["\\u001b[2J"]}', "layer_types is"),
        (
            '{"model_type": "roberta", "max_position_embeddings": 2}',
            "embeddings is 2, expected more",
        ),
        ('{"model_type": "eurobert", "num_key_value_heads": 5}', "expected a divisor of the 12 heads"),
        ('{"model_type": "gpt2", "n_head": 7}', "n_head is 7, expected a divisor of the hidden size 768"),
        ('{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}', "must have the same attention"),
        ('{"model_type": "opt", "layerdrop": 0.1}', "layerdrop is 0.1, expected 0: "),
        ('{"model_type": "opt", "word_embed_proj_dim": 512}', "expected 768, the hidden size"),
        ('{"model_type": "gemma", "use_bidirectional_attention": true}', "only causal attention"),
        ('{"model_type": "gemma2", "layer_types": ["full_attention"]}', "a list of 26 values"),
        ('{"model_type": "smollm3", "use_sliding_window": true, "no_rope_layers": 4}', "a list of 36"),
        ('{"model_type": "mistral", "sliding_window": "4096"}', "expected a positive integer"),
        ('{"model_type": "deberta-v2", "conv_kernel_size": 3}', "the convolution of the first block"),
        ('{"model_type": "deberta-v2", "legacy": false}', "legacy is false"),
        (
            '{"model_type": "deberta-v2", "relative_attention": true, "pos_att_type": "c2p|p2p"}',
            "pos_att_type is",
        ),
    ],
)
def test_a_config_json_is_data_and_is_checked(tmp_path, content, problem):
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ProjectError) as caught:
        model_shape(RunConfig(model=HfModelConfig(config=str(tmp_path))), VOCAB_SIZE)
    assert caught.value.code == "MOD006"
    assert problem in caught.value.message
    assert "\x1b" not in str(caught.value)


def test_a_folder_that_is_not_there_is_not_called_a_file(tmp_path):
    for folder, absent in ((tmp_path, tmp_path / "config.json"), (tmp_path / "typo", tmp_path / "typo")):
        with pytest.raises(ProjectError) as caught:
            model_shape(RunConfig(model=HfModelConfig(pretrained_checkpoint=str(folder))), VOCAB_SIZE)
        assert (caught.value.code, caught.value.message) == ("MOD006", f"{absent} does not exist")
    newest = tmp_path / "checkpoints" / "latest"
    newest.mkdir(parents=True)
    with pytest.raises(ProjectError) as caught:
        model_shape(RunConfig(model=HfModelConfig(pretrained_checkpoint=str(tmp_path))), VOCAB_SIZE)
    assert caught.value.hint == f"set model.pretrained_checkpoint to {newest}"


def test_neither_a_config_json_nor_an_architecture_is_an_error():
    with pytest.raises(ProjectError, match=r"neither model.config nor model.architecture") as caught:
        model_shape(RunConfig(model=HfModelConfig()), VOCAB_SIZE)
    assert caught.value.place == "model.config"


@pytest.mark.parametrize(
    ("stated", "row", "expected"), [(None, 64, 1024), (None, 2048, 2048), (128, 64, 128)]
)
def test_a_neobert_that_is_tuned_on_short_rows_keeps_its_positions(tmp_path, stated, row, expected):
    (tmp_path / "config.json").write_text('{"model_type": "neobert", "max_position_embeddings": 1024}')
    section = ModelConfig(pretrained_checkpoint=str(tmp_path), max_position_embeddings=stated)
    assert NEOBERT.read_shape(section, 128, row).max_positions == expected
