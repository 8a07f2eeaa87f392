"""Partial and finished results of one model are not taken as those of another, through the commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from launcher.cli import app
from neobert.encoding import job
from neobert.encoding.request import Request
from neobert.encoding.shards import MANIFEST, Shards
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.runfiles.checkpoint.manifest import seal_checkpoint
from neobert.runfiles.checkpoint.refusal import STRAY_HINT

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]
EVALUATIONS = ("encode", "retrieval", "blimp")


@pytest.fixture
def model(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A model whose file is larger than what a look at its two ends covers."""
    config = NeoBERTConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=32, attn_backend="sdpa", pooling="avg",
    )  # fmt: skip
    folder = tmp_path / "model"
    write_hf_folder(NeoBERTLMHead(config), read_tokenizer_files(tokenizer_dir), folder)
    return folder


@pytest.fixture
def words(tmp_path: Path, model: Path) -> Callable[[str], list[str]]:
    """The command line of an evaluation of small data."""
    texts, beir, pairs = tmp_path / "texts.txt", tmp_path / "beir", tmp_path / "pairs.jsonl"
    texts.write_text("the model reads\na b c\ntext\n")
    beir.mkdir()
    (beir / "corpus.jsonl").write_text('{"_id": "d", "text": "the model"}\n{"_id": "e", "text": "a b"}\n')
    (beir / "queries.jsonl").write_text('{"_id": "q", "text": "model"}\n')
    (beir / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    row = {"sentence_good": "the model reads", "sentence_bad": "reads the model", "UID": "one",
           "linguistics_term": "order", "field": "syntax"}  # fmt: skip
    pairs.write_text(json.dumps(row) + "\n")

    def line(name: str) -> list[str]:
        if name == "encode":
            return [
                "encode",
                str(model),
                str(texts),
                "-o",
                str(tmp_path / "out.npy"),
                "--texts-per-shard",
                "1",
            ]
        data = str(beir if name == "retrieval" else pairs)
        return ["evaluate", name, str(model), data, "-o", str(tmp_path / "out"), "--device", "cpu"]

    return line


def change_the_middle(model: Path) -> None:
    """Change one weight, and neither the size of the file nor its ends."""
    file = model / "model.safetensors"
    state = load_file(file)
    state["model.transformer_encoder.0.ffn.w12.weight"][1024] += 1
    save_file(state, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", EVALUATIONS)
def test_weights_that_differ_in_the_middle_are_another_model(
    name, words, model, tmp_path, monkeypatch, capsys
):
    if name == "encode":
        stop_after_a_shard(model, tmp_path, monkeypatch)
    else:
        assert app.run(words(name)) == EXIT_OK
    kept = {file: file.read_bytes() for file in tmp_path.glob("out*/*") if file.is_file()}
    size = (model / "model.safetensors").stat().st_size
    change_the_middle(model)
    assert (model / "model.safetensors").stat().st_size == size
    capsys.readouterr()
    assert app.run(words(name)) == EXIT_USAGE
    refusal = capsys.readouterr().err
    assert "model changed (model.safetensors)" in refusal
    assert all(file.read_bytes() == content for file, content in kept.items())
    (tmp_path / ("out.npy.parts" if name == "encode" else "out")).rename(tmp_path / "kept")
    assert app.run(words(name)) == EXIT_OK, "without the other results, as the hint says"


def stop_after_a_shard(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Shards.write

    def write(*arguments: object) -> None:
        right(*arguments)
        raise KeyboardInterrupt

    request = Request(str(model), str(tmp_path / "texts.txt"), str(tmp_path / "out.npy"), texts_per_shard=1)
    with monkeypatch.context() as patch:
        patch.setattr(Shards, "write", write)
        with pytest.raises(KeyboardInterrupt):
            job.run(request)


def test_shards_in_another_precision_are_not_continued(words, model, tmp_path, monkeypatch, capsys):
    stop_after_a_shard(model, tmp_path, monkeypatch)
    assert app.run([*words("encode"), "--dtype", "bf16"]) == EXIT_USAGE
    assert 'dtype changed from "fp32" to "bf16"' in capsys.readouterr().err


def test_shards_of_a_version_with_another_identity_are_refused_and_say_so(
    words, model, tmp_path, monkeypatch, capsys
):
    stop_after_a_shard(model, tmp_path, monkeypatch)
    manifest = tmp_path / "out.npy.parts" / MANIFEST
    earlier = json.loads(manifest.read_text())
    del earlier["model"], earlier["device"]
    manifest.write_text(json.dumps(earlier | {"weights": [["model.safetensors", 1, "00"]]}))
    assert app.run(words("encode")) == EXIT_USAGE
    assert "model was not recorded by the earlier job" in capsys.readouterr().err


@pytest.mark.parametrize("name", EVALUATIONS)
def test_weights_that_the_manifest_does_not_list_are_not_read(name, words, model, capsys):
    """An index of shards was read in place of the weights that the checkpoint was saved with."""
    seal_checkpoint(model, 4, "digest", "2026-01-01T00:00:00+00:00")
    state = load_file(model / "model.safetensors")
    (model / "model.safetensors").rename(model / "other.safetensors")
    index = {"weight_map": dict.fromkeys(state, "other.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert app.run(words(name)) == EXIT_CHECK_FAILED
    refusal = capsys.readouterr().err
    assert "does not list model.safetensors.index.json, other.safetensors [CKP007]" in refusal
    assert STRAY_HINT in refusal
    (model / "model.safetensors.index.json").unlink()
    (model / "other.safetensors").rename(model / "model.safetensors")
    assert app.run(words(name)) == EXIT_OK
