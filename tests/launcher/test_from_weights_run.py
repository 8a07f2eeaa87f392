"""A model of the Hub, trained by one command: the run starts from its weights."""

import json
from pathlib import Path

import pytest

from tests.launcher.stub_hub import Hub, serving

pytestmark = pytest.mark.e2e  # not warm: the Hub library reads HF_HUB_OFFLINE when it is imported
WORDS = [f"word{number}" for number in range(123)]


def write_bert(folder: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    Path("vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast("vocab.txt").save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)


def test_a_run_starts_from_the_weights_of_the_hub(run_child, monkeypatch, tmp_path):
    from safetensors.torch import load_file

    write_bert(Path("bert"))
    Path("notes").mkdir()
    texts = [" ".join(WORDS[number % 100 : number % 100 + 9]) for number in range(2000)]
    Path("notes", "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    hub = Hub()
    commit = hub.push("owner/bert", Path("bert"))
    train = ("train", "--from", "owner/bert", "--text", "notes", "--trainer.max_steps", "2")
    short = ("--trainer.eval_steps", "1", "--trainer.save_steps", "1", "--optimizer.lr", "1e-9")
    with serving(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        trained = run_child(*train, *short, "--output-format", "json")
    assert trained.code == 0, trained.out + trained.err
    assert trained.json["step"] == 2
    before = load_file("bert/model.safetensors")
    after = load_file("runs/bert-notes/checkpoints/2/model.safetensors")
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert (weight - after[name]).abs().max() < 1e-6, name
    resolved = json.loads(Path("runs/bert-notes/resolved.json").read_text(encoding="utf-8"))
    assert (resolved["model"]["revision"], resolved["tokenizer"]["name"]) == (commit, "owner/bert")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    longer = run_child(*train[:-1], "3", *short, "--resume", "auto", "--output-format", "json")
    assert (longer.code, longer.json["step"]) == (0, 3), longer.out + longer.err
