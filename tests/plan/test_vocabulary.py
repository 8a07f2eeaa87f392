"""The size of a tokenizer read from its files: what the trainer's loader makes of the same files."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.app import run
from neobert.config.schema import ModelConfig, RunConfig, TokenizerConfig
from neobert.plan import assumptions_for, build_plan
from neobert.plan.tokenizer_contents import MAX_FILE_MIB
from neobert.plan.vocabulary import configured_size, tokenizer_size

torch = pytest.importorskip("torch")

from neobert.data.tokenize.tokenizers import load_tokenizer  # noqa: E402  only where torch is
from neobert.model import NeoBERTLMHead  # noqa: E402
from neobert.model.build import build_model_config  # noqa: E402
from neobert.tasks.weights import num_embedding_rows  # noqa: E402

MARKERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
SMALL = ModelConfig(hidden_size=64, num_attention_heads=1, num_hidden_layers=1, intermediate_size=64)
Write = Callable[..., Path]


def tokenizer_json(
    num_words: int, special: tuple[str, ...] = MARKERS, added: tuple[str, ...] = ()
) -> dict[str, Any]:
    words = [*special, *(f"w{number}" for number in range(num_words))]
    vocabulary = {word: number for number, word in enumerate(words)}
    names = [*special, *added]
    numbers = {**{name: len(words) + place for place, name in enumerate(added)}, **vocabulary}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    template = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    marks = {each: {"id": each, "ids": [vocabulary[each]], "tokens": [each]} for each in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
        "added_tokens": [{"id": numbers[name], "content": name, "special": True, **flags} for name in names],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": marks,
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(content: dict[str, Any], settings: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / "tok"
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        if settings is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(CLASS | settings), encoding="utf-8")
        return folder

    return make


FULL = 128 - len(MARKERS)
EXTRA = {"content": "<extra>", "special": True, "lstrip": False, "rstrip": False, "single_word": False,
         "normalized": False}  # fmt: skip
CASES = [
    # words, special tokens, added tokens, settings; the sizes are on either side of a multiple of 128
    (FULL, MARKERS, (), None),
    (FULL + 1, MARKERS, (), None),
    (FULL - 1, MARKERS, ("<a>", "<b>"), None),
    (FULL, MARKERS, (), {"mask_token": "<mine>"}),
    (FULL, MARKERS, (), {"mask_token": {**EXTRA, "__type": "AddedToken"}}),
    (FULL, MARKERS, (), {"additional_special_tokens": ["<a>", "<b>"]}),
    (FULL, MARKERS, (), {"extra_special_tokens": {"image_token": "<img>"}}),
    (FULL, MARKERS, (), {"added_tokens_decoder": {"128": EXTRA}}),
    (FULL, MARKERS, (), {"mask_token": "[MASK]", "add_prefix_space": False, "eos_token": None}),
    (FULL + 1, MARKERS[:4], (), None),
    (FULL + 1, MARKERS[:4], (), {"mask_token": "<mine>"}),
]


@pytest.mark.parametrize(("num_words", "special", "added", "settings"), CASES)
def test_the_planned_parameters_are_the_trainer_s(num_words, special, added, settings, write):
    """Also where a parent gives the size of another vocabulary, which a named tokenizer does not take."""
    folder = write(tokenizer_json(num_words, special, added), settings)
    named = TokenizerConfig(path=str(folder), vocab_size=4096, allow_special_token_rewrite=True)
    config = RunConfig(model=SMALL, tokenizer=named)
    device = replace(assumptions_for(None, None, 0.3), tokenizer=tokenizer_size(config.tokenizer))
    loaded = load_tokenizer(config.tokenizer)
    rows = num_embedding_rows(config, loaded)
    with torch.device("meta"):
        model = NeoBERTLMHead(build_model_config(SMALL, rows, loaded.pad_id, "sdpa", "torch"))
    assert build_plan(config, device).num_parameters.value == model.num_parameters()


def test_the_plan_reads_the_tokenizer_of_a_run(write, tmp_path, capsys):
    folder = write(tokenizer_json(16_000 - len(MARKERS)))
    words = ["plan", "-p", "cpu-demo", "--set", f"tokenizer.path={folder}"]
    assert run([*words, "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["vocab_size"] == {
        "value": 16_000,
        "reason": f"tokenizer.path {folder} has 16,000 tokens, rounded up to a multiple of 128",
    }


def test_a_tokenizer_of_the_local_hub_cache_is_read(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    config = TokenizerConfig(name="me/tok")
    assert tokenizer_size(config).is_assumed
    repository = tmp_path / "hub" / "models--me--tok"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123\n", encoding="ascii")
    (repository / "snapshots").mkdir()
    write(tokenizer_json(200)).rename(repository / "snapshots" / "abc123")
    for revision in (None, "abc123"):
        found = tokenizer_size(replace(config, revision=revision))
        assert (found.num_tokens, found.is_assumed) == (205, False)
    assert tokenizer_size(replace(config, revision="other")).is_assumed


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("{}", "has no vocabulary"),
        ('{"model": {"vocab": 5}}', "has no vocabulary"),
        ('{"model": {"vocab": {"a": 0, "b": 2}}}', "has ids up to 2 for 2 tokens"),
        ('{"model": {"vocab": {"a": 0, "b": [1]}}}', "has an id that is not a number"),
        ("[" * 100_000, "is not JSON"),
        ("\ud800", "is not JSON"),
    ],
)
def test_malformed_files_are_an_assumption_and_a_fault(content, fault, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content.encode("utf-8", errors="surrogatepass"))
    found = tokenizer_size(TokenizerConfig(path=str(file)))
    assert (found.num_tokens, found.is_assumed) == (30_522, True)
    assert "assumed 30,522" in found.source
    assert found.fault.startswith(f"{file} {fault}")


def test_an_added_token_may_fill_a_gap_and_a_vocabulary_may_be_a_list(tmp_path):
    file = tmp_path / "tokenizer.json"
    for model in ({"vocab": {"a": 0, "b": 2}}, {"vocab": [["a", -1.0]]}):
        content = {"added_tokens": [{"content": "<x>", "id": 1}], "model": model}
        file.write_text(json.dumps(content) + " " * len(str(model)), encoding="utf-8")
        assert not tokenizer_size(TokenizerConfig(path=str(file))).fault


def test_no_pipe_and_no_huge_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_FILE_MIB * 2**20 + 1)
    for name in ("pipe", "tokenizer.json"):
        assert tokenizer_size(TokenizerConfig(path=str(tmp_path / name))).is_assumed


def test_what_needs_no_file_is_known():
    for config in (TokenizerConfig(vocab_size=512), TokenizerConfig(name="bert-base-uncased")):
        assert tokenizer_size(config) == configured_size(config)
        assert not configured_size(config).is_assumed


def test_a_changed_tokenizer_is_read_again(write):
    folder = write(tokenizer_json(200))
    config = TokenizerConfig(path=str(folder))
    assert tokenizer_size(config).num_tokens == 205
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(300)), encoding="utf-8")
    assert tokenizer_size(config).num_tokens == 305
