"""Key words masked at the end of long documents: found by a model that copies them, and by no other."""

import json
from collections import deque
from dataclasses import astuple
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from launcher.cli import app
from launcher.commands.evaluation import parse_lengths
from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.encoding.encoder import TOKENS_PER_RUN
from neobert.encoding.model import InferenceModel
from neobert.errors import ProjectError
from neobert.evaluation.passkey.documents import DEPTHS, FILLER, KEY_WORDS, STATEMENT, Documents
from neobert.evaluation.passkey.evaluate import Settings, evaluate_passkey
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from tests.nsa import sizes as sparse
from tests.refusals import refusal_of

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KEYS = tuple("".join(each) + "bird" for each in product("bdfk", "aeio"))
MAX_STEPS = 1500


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    plain = f"{FILLER} {STATEMENT}".replace(".", " .").replace(",", " ,").split()
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys((*SPECIAL, *plain, *KEYS)))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def bundle(tokenizer_folder: Path) -> TokenizerBundle:
    return load_tokenizer(TokenizerConfig(path=str(tokenizer_folder)), roles=("mask_token",))


def new_model() -> NeoBERTLMHead:
    torch.manual_seed(0)
    config = NeoBERTConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=64, attn_backend="sdpa", tie_word_embeddings=True, embedding_multiplier=8.0,
    )  # fmt: skip
    return NeoBERTLMHead(config)


def test_a_document_depends_on_its_own_place_alone(bundle):
    documents = Documents(bundle, is_causal=False)
    assert bundle.tokenizer.convert_ids_to_tokens(documents.words) == list(KEYS)
    for length, depth in product((40, 64), DEPTHS):
        each, again = (documents.document(3, length, depth, 7) for _ in range(2))
        np.testing.assert_array_equal(each.tokens, again.tokens)
        assert len(each.tokens) == length
        assert (each.tokens[each.queried] == bundle.mask_id).all()
        places = [np.flatnonzero(each.tokens == word).tolist() for word in each.key]
        assert [len(found) for found in places] == [1] * KEY_WORDS  # stated once
        first = len(bundle.framing.start) + round(depth * (length - documents.min_length)) + 4
        assert places == [[first], [first + 1], [first + 2]]
    other = documents.document(4, 64, 0.5, 7)
    assert not np.array_equal(other.tokens, documents.document(3, 64, 0.5, 7).tokens)


def learn(model: NeoBERTLMHead, bundle: TokenizerBundle) -> None:
    """Train on short documents of another seed, with keys at any depth, until keys are copied."""
    documents, draw = Documents(bundle, is_causal=False), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    recent = deque[float]([1.0], maxlen=20)
    for step in range(MAX_STEPS):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50)
        length = int(draw.integers(documents.min_length + 1, 37))
        numbers = range(step * 32, (step + 1) * 32)
        batch = [documents.document(-1, length, float(draw.random()), number) for number in numbers]
        rows, masked, keys = (
            torch.from_numpy(np.stack(each)) for each in zip(*map(astuple, batch), strict=True)
        )
        logits = model(rows).logits
        at_masks = logits.gather(1, masked[..., None].expand(-1, -1, logits.shape[-1]))
        loss = F.cross_entropy(at_masks.flatten(0, 1), keys.flatten())
        recent.append(loss.item())
        if fmean(recent) < 0.03:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.skipif(
    settings.get_current_profile_name() != "thorough", reason="a minute of training: make test-thorough"
)
def test_a_model_passes_once_it_has_learned_to_copy(bundle, tokenizer_folder, tmp_path, capsys):
    model, files = new_model(), read_tokenizer_files(tokenizer_folder)
    write_hf_folder(model, files, tmp_path / "before")
    learn(model, bundle)
    write_hf_folder(model, files, tmp_path / "after")

    def test(name: str) -> tuple[int, dict[str, float]]:
        lengths = ("--lengths", "24,32", "--trials", "10", "--at-least", "90")
        code = app.run(
            ["evaluate", "passkey", str(tmp_path / name), "-o", str(tmp_path / f"{name}-1"), *lengths]
        )
        report = json.loads((tmp_path / f"{name}-1" / "passkey.json").read_text(encoding="utf-8"))
        return code, report["accuracy"]

    code, accuracy = test("before")
    assert (code, max(accuracy.values()) < 5 / len(KEYS)) == (1, True)
    assert "(minimum 90%)" in capsys.readouterr().err
    code, accuracy = test("after")
    assert (code, min(accuracy.values()) >= 0.9) == (0, True)
    assert test("after") == (code, accuracy)


def test_documents_are_packed_without_changing_the_answer(tokenizer_folder, tmp_path, monkeypatch):
    write_hf_folder(new_model(), read_tokenizer_files(tokenizer_folder), tmp_path / "model")
    test = Settings(folder=str(tmp_path / "model"), lengths=(32, 96), trials=2)
    packed = evaluate_passkey(test)
    monkeypatch.setitem(TOKENS_PER_RUN, "cpu", 1)
    assert evaluate_passkey(test)["by_depth"] == packed["by_depth"]
    assert packed["chance"] == 1 / len(KEYS)


def test_a_causal_model_is_asked_for_each_word_after_the_words_before_it(
    tokenizer_folder, tmp_path, monkeypatch
):
    model = sparse.build().model
    write_hf_folder(model, read_tokenizer_files(tokenizer_folder), tmp_path / "model")
    test = Settings(folder=str(tmp_path / "model"), lengths=(32, 96), trials=2)
    drawn = evaluate_passkey(test)
    assert (drawn["kernels"].split()[-1], max(drawn["accuracy"].values()) < 0.5) == ("nsa_reference", True)
    # In a model that knows the next token, and no other, every word is right.
    monkeypatch.setattr(InferenceModel, "hidden_states", lambda _self, run: run.inputs["input_ids"].roll(-1))
    monkeypatch.setattr(InferenceModel, "logits", lambda _self, tokens: F.one_hot(tokens, sparse.ROWS))
    assert evaluate_passkey(test)["accuracy"] == {"32": 1.0, "96": 1.0}
    bundle = load_tokenizer(TokenizerConfig(path=str(tokenizer_folder)), roles=("eos_token",))
    document = Documents(bundle, is_causal=True).document(0, 40, 0.5, 0)
    assert (len(document.tokens), document.tokens[-KEY_WORDS:].tolist()) == (40, document.key.tolist())


@pytest.mark.parametrize(
    ("changed", "lengths", "problem"),
    [
        ({"rope": False}, (96,), "exceed the 64 positions of the model"),
        ({}, (12,), "12 tokens are too few for a document"),
    ],
)
def test_lengths_without_an_answer_are_refused(tokenizer_folder, tmp_path, changed, lengths, problem):
    config = NeoBERTConfig(**new_model().config.to_dict() | changed)
    write_hf_folder(NeoBERTLMHead(config), read_tokenizer_files(tokenizer_folder), tmp_path / "model")
    with pytest.raises(ProjectError, match=problem):
        evaluate_passkey(Settings(folder=str(tmp_path / "model"), lengths=lengths))


@pytest.mark.parametrize("text", ["1k,,2k", "many", "0", "2000k", "9" * 5000])
def test_a_list_of_lengths_that_is_none_is_refused(text):
    assert parse_lengths("4k,512,1K") == [512, 1024, 4096]
    refusal_of(parse_lengths, "usage", "--lengths has", text)
