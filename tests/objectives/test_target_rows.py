"""Room for the targets: enough for all but one microbatch in a billion, and never too little."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import from_dict
from neobert.config.schedules import masking_rates
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTLMHead, build_model_config
from neobert.objectives.build import token_objective_for
from neobert.objectives.objective import MULTIPLE, num_decoder_rows, target_capacity

TOKENS = st.integers(1, 300_000)


@given(TOKENS, st.floats(0.001, 1.0))
def test_the_capacity_is_a_round_size_or_all_tokens(num_tokens, probability):
    capacity = target_capacity(num_tokens, probability)
    assert num_tokens * probability <= capacity + 1e-6
    assert capacity == num_tokens or capacity % MULTIPLE == 0


@given(TOKENS, st.floats(0.001, 1.0), st.floats(0.0, 1.0))
def test_no_target_is_left_without_a_row(num_tokens, probability, share):
    num_targets = int(share * num_tokens)
    rows = num_decoder_rows(num_targets, target_capacity(num_tokens, probability), num_tokens)
    assert num_targets <= rows <= num_tokens


def test_the_measured_shape():
    assert target_capacity(32_768, 0.2) == 7040
    assert num_decoder_rows(0, 7040, 32_768) == num_decoder_rows(7040, 7040, 32_768) == 7040
    assert num_decoder_rows(7041, 7040, 32_768) == 14_080
    assert num_decoder_rows(30_000, 7040, 32_768) == 32_768


def test_draws_stay_inside():
    draws = np.random.default_rng(0).binomial(4096, 0.2, size=20_000)
    assert draws.max() <= target_capacity(4096, 0.2) < 1.4 * draws.mean()


def test_training_and_evaluation_have_room_for_their_own_rates():
    rates = {"mlm_probability": 0.4, "mlm_probability_eval": 0.1}
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = from_dict({"datacollator": rates, "model": shape | {"intermediate_size": 24}})
    model = NeoBERTLMHead(build_model_config(config.model, 128, 0, "sdpa"))
    rates = masking_rates(config.datacollator)
    objective = token_objective_for(config, backbone_from_model(model), "cuda", rates, targets_only=True)
    tokens = config.trainer.per_device_train_batch_size * config.dataset.max_seq_length
    assert objective.capacity == target_capacity(tokens, 0.4)
    assert objective.eval_capacity == target_capacity(tokens, 0.1)
