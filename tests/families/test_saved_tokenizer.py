"""A tokenizer that transformers would read from a checkpoint as another one is refused."""

import pytest
from transformers import Qwen2Tokenizer

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.tokenizers import build_bundle
from neobert.data.tokenize.trained import train_tokenizer
from neobert.errors import ProjectError
from neobert.families.hf.saved_tokenizer import refuse_other_tokenizer

TEXTS = ["It's 1,234.5 miles to a naïve café, if x is not y: don't end."] * 20


def trained(algorithm):
    return build_bundle(train_tokenizer(TEXTS, TokenizerConfig(algorithm=algorithm, vocab_size=400)), "here")


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_a_trained_tokenizer_is_none_of_a_qwen2(algorithm):
    refuse_other_tokenizer(trained(algorithm), "llama")
    refuse_other_tokenizer(trained(algorithm), "modernbert")
    with pytest.raises(ProjectError, match="every qwen2 as a Qwen2Tokenizer") as found:
        refuse_other_tokenizer(trained(algorithm), "qwen2")
    assert "model.architecture to llama" in found.value.hint


def test_the_tokenizer_of_a_qwen2_is_read_as_it_is():
    letters = {letter: number for number, letter in enumerate("ĠItsmilendo1234")}
    own = Qwen2Tokenizer(vocab=letters | {"<|endoftext|>": len(letters)}, merges=[])
    refuse_other_tokenizer(build_bundle(own, "here"), "qwen2")
