"""Exports in every format: each folder gives what the model gives, and one that does not is removed."""

import ast
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from neobert.encoding import Encoder
from neobert.encoding.declared import read_declared_settings
from neobert.errors import ProjectError
from neobert.export import read_weights, verify, write_hf_folder
from neobert.export import run as export_run
from neobert.export.embedding_files import EmbeddingFiles
from neobert.export.formats import fork, gguf, onnx
from neobert.export.formats import hf as hf_format
from neobert.export.readers import transformers_folder
from neobert.export.reference import LIMIT, make_reference, output_gaps
from neobert.export.run import export, load_writer, refuse_unsuitable
from neobert.export.source import SPECIAL_TOKENS, load_mean_weights, open_source
from neobert.export_formats import CONVERSION, FORMATS
from neobert.model import NeoBERTForSequenceClassification, NeoBERTForTokenClassification
from neobert.model.modeling_neobert import NeoBERTForMultipleChoice, NeoBERTForQuestionAnswering
from neobert.runfiles.checkpoint.manifest import seal_checkpoint
from neobert.runfiles.checkpoint.model_files import weights_digest
from neobert.runfiles.evaluation_report import ReportFigure, summary_json
from tests.export.conftest import leave_unread
from tests.framed_tokenizers import tokenizer_of
from tests.refusals import refusal_of

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]


ST = "sentence-transformers"
PRETRAINING = '{"model_type": "bert", "architectures": ["BertForPreTraining"]}'
EXAMPLE = Path(__file__).parents[2] / "examples" / "mlm_predict.py"
LARGE = {"embedding_init_range": 1.0, "decoder_init_range": 0.3}


@pytest.fixture
def save(tokenizer_dir, tmp_path):
    """Write a model as a checkpoint's folder; its tokenizer is a bare tokenizer.json."""

    def write(model, name="100") -> Path:
        tokenizer = {"tokenizer.json": (tokenizer_dir / "tokenizer.json").read_bytes()}
        write_hf_folder(model, tokenizer, tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def checkpoint(make_model, save):
    """A model with weights so large that a fault in any of them shows."""
    return save(make_model(**LARGE, tie_word_embeddings=True, pooling="avg"))


def run(checkpoint: Path, name: str, pooling: str | None = None) -> Path:
    if missing := FORMATS[name].missing_packages():
        pytest.skip(f"needs {', '.join(missing)}: {FORMATS[name].install_command}")
    output = checkpoint.parent / "out"
    export([checkpoint], [name], output, pooling)
    assert [path.name for path in output.iterdir()] == [name]
    modes = {path.stat().st_mode & 0o777 for path in output.rglob("*") if path.is_file()}
    assert modes == {(output / name).stat().st_mode & 0o666}  # whoever may read the folder may read the model
    return output / name


def unread(checkpoint: Path, name: str, monkeypatch) -> Path:
    leave_unread(monkeypatch)
    return run(checkpoint, name)


def test_two_exports_do_not_write_one_folder(checkpoint, monkeypatch):
    """The second would remove the temporary folder of the first."""
    output, write = checkpoint.parent / "out", hf_format.WRITER.write

    def export_again(source, folder):
        with pytest.raises(ProjectError, match="another process is exporting to this folder"):
            export([checkpoint], ["hf"], output, None)
        return write(source, folder)

    leave_unread(monkeypatch)
    monkeypatch.setattr(
        "neobert.export.run.load_writer", lambda _: replace(hf_format.WRITER, write=export_again)
    )
    export([checkpoint], ["hf"], output, None)
    monkeypatch.undo()
    refusal_of(export, "EXP012", "the folder already exists", [checkpoint], ["hf"], output, None)


@pytest.mark.parametrize(
    ("name", "pooling"), [(name, None) for name in FORMATS if name != ST] + [(ST, "max")]
)
def test_each_format_gives_what_the_model_gives(checkpoint, name, pooling):
    folder = run(checkpoint, name, pooling)
    report = json.loads((folder / CONVERSION).read_text())
    assert report["max_difference"]
    assert max(report["max_difference"].values()) <= LIMIT
    assert report["read_with"]
    assert report["source"][0]["folder"] == "100"
    assert len(report["source"][0]["weights_sha256"]["model.safetensors"]) == 64
    if name == ST:
        assert json.loads((folder / "config.json").read_text())["pooling"] == "max"
        assert (
            json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_max_tokens"] is True
        )
    if name == "onnx":
        states = run_example(folder)["last_hidden_state"]
        assert states.shape[0] == 2
        assert np.isfinite(states).all()
    if name in ("hf", ST, "onnx"):
        check_that_the_code_that_a_config_names_is_there(folder)
    if name == "hf":
        assert json.loads((folder / SPECIAL_TOKENS).read_text())["pad_token"] == "[PAD]"
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        assert (tokenizer.pad_token, tokenizer.mask_token, tokenizer.model_max_length) == (
            "[PAD]",
            "[MASK]",
            32,
        )


def run_example(folder: Path) -> dict[str, Any]:
    """Run the example of the model card as a reader would, and return its variables."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    example = card.partition("```python\n")[2].partition("```")[0]
    variables: dict[str, Any] = {}
    exec(example.replace("FOLDER", str(folder)), variables)
    return variables


def check_that_the_code_that_a_config_names_is_there(folder: Path) -> None:
    classes = json.loads((folder / "config.json").read_text())["auto_map"]
    assert "AutoConfig" in classes
    modules = {path.partition(".")[0] for path in classes.values()}
    imported = {found for each in modules for found in relative_imports(folder / f"{each}.py")}
    assert all((folder / f"{each}.py").is_file() for each in modules | imported)


def relative_imports(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level}


def test_the_card_holds_figures_of_these_weights_alone(checkpoint, monkeypatch):
    seal_checkpoint(checkpoint, 100, "digest", "2026-01-01T00:00:00+00:00", {"eval/loss": 2.5})
    leave_unread(monkeypatch)
    figures = [ReportFigure(name="rte", metric="accuracy", value=0.5, seeds=1, starts_from="pretrained")]
    file = checkpoint.parent / "glue.json"
    report = {"weights": weights_digest(checkpoint), "summary": summary_json("GLUE", figures, ["one seed"])}
    file.write_text(json.dumps(report))
    export([checkpoint], ["hf"], checkpoint.parent / "out", None, [file])
    card = (checkpoint.parent / "out" / "hf" / "README.md").read_text()
    assert "| loss | 2.5000 |" in card
    assert "| rte | accuracy | 50.0 | 1 | pretrained |\n\n- one seed" in card
    file.write_text(json.dumps({**report, "weights": "of another model"}))
    with pytest.raises(ProjectError, match="is about weights other than"):
        export([checkpoint], ["hf"], checkpoint.parent / "other", None, [file])
    assert not (checkpoint.parent / "other").exists()


@pytest.mark.parametrize(
    ("name", "call"), [("hf", 'pipeline("fill-mask"'), (ST, "SentenceTransformer(")], ids=["hf", ST]
)
def test_the_card_shows_how_the_library_of_the_folder_loads_it(checkpoint, monkeypatch, name, call):
    leave_unread(monkeypatch)
    export([checkpoint], [name], checkpoint.parent / "out", "cls")
    card = (checkpoint.parent / "out" / name / "README.md").read_text()
    assert f"library_name: {'transformers' if name == 'hf' else name}\n" in card
    example = card.partition("```python\n")[2].partition("```")[0]
    assert call in example
    ast.parse(example)


def test_llama_cpp_gets_base_pooling_width_and_factor_of_the_model(make_model, save):
    changes = {"rope_theta": 500.0, "intermediate_size": 49, "embedding_multiplier": 3.0}
    run(save(make_model(**LARGE | changes)), "gguf-ready", "cls")


def test_a_classifier_is_exported_whole(make_model, save):
    """One layer, since tracing takes seconds for each: those of an encoder are exported above."""
    model = NeoBERTForTokenClassification(
        make_model(**LARGE, num_hidden_layers=1, pooling="avg", num_labels=3).config
    ).eval()
    folder = run(save(model), "onnx")
    report = json.loads((folder / CONVERSION).read_text())
    assert report["output"] == "logits"
    assert report["max_difference"].keys() >= {"logits", "logits, one text at a time"}
    assert run_example(folder)["logits"].shape[-1] == 3


@pytest.mark.parametrize("head", [NeoBERTForQuestionAnswering, NeoBERTForMultipleChoice])
def test_heads_of_spans_and_choices_are_exported_for_transformers(make_model, save, head, tmp_path):
    model = head(make_model(num_hidden_layers=1, pooling="avg").config).eval()
    source = open_source([save(model)], None)
    hf_format.write(source, tmp_path / "hf")
    reference = make_reference(source)
    found = transformers_folder.read(str(tmp_path / "hf"), reference.texts)
    assert max(output_gaps(hf_format.WRITER.expected_outputs(source, reference), found).values()) < LIMIT
    assert found["logits"].shape[-1] == (2 if head is NeoBERTForQuestionAnswering else 1)
    assert f"{head.__name__} has inputs or outputs that the ONNX graph does not support" in onnx.refusal(
        source
    )


@pytest.mark.parametrize(
    ("name", "module", "function", "fault"),
    [
        ("gguf-ready", gguf, "to_gguf_layout", lambda name, tensor, config: tensor),
        ("fork", fork, "hub_to_fork", lambda state: swap_gates(HUB_TO_FORK(state))),
    ],
)
def test_a_fault_of_the_writer_is_found(checkpoint, monkeypatch, name, module, function, fault):
    monkeypatch.setattr(module, function, fault)
    refusal_of(run, "EXP006", "differ from the model's", checkpoint, name)
    assert list((checkpoint.parent / "out").iterdir()) == []


HUB_TO_FORK = fork.hub_to_fork


def swap_gates(state):
    names = {"w1": "w2", "w2": "w1"}
    return {
        ".".join(names.get(part, part) for part in name.split(".")): tensor for name, tensor in state.items()
    }


def test_a_full_disk_is_one_clear_error(checkpoint, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_format, "write_hf_folder", fail)
    (checkpoint.parent / "out" / ".tmp-hf").mkdir(parents=True)  # of an export that was killed
    refusal_of(run, "EXP012", "No space left on device", checkpoint, "hf")
    assert list((checkpoint.parent / "out").iterdir()) == []


def test_a_missing_dependency_of_the_library_is_named(checkpoint, monkeypatch, tmp_path):
    """It was reported as a fault of the folder. This project's own packages are hidden on purpose."""
    reader = tmp_path / "isolated.py"
    monkeypatch.setattr(verify, "ISOLATED", reader)
    for name, code in (("sklearn.utils", "export-package"), ("neobert", "EXP010")):
        reader.write_text(f"raise ModuleNotFoundError({f'No module named {name!r}'!r})")
        with pytest.raises(ProjectError) as caught:
            run(checkpoint, "hf")
        assert caught.value.code == code
        assert ("pip install sklearn, then export again" in caught.value.hint) == (name != "neobert")
        assert list((checkpoint.parent / "out").iterdir()) == []


def test_a_folder_that_its_library_cannot_read_is_removed(checkpoint, monkeypatch):
    empty = replace(gguf.WRITER, write=lambda source, folder: (folder / "x").touch())
    monkeypatch.setattr(export_run, "load_writer", lambda _: empty)
    with pytest.raises(ProjectError) as caught:
        run(checkpoint, "gguf-ready")
    assert caught.value.code == "EXP010"
    assert list((checkpoint.parent / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("gguf-ready", {"hidden_act": "gelu"}, "graph does not support hidden_act: gelu"),
        (
            "gguf-ready",
            {"rms_norm": False, "rope": False},
            "does not support rms_norm: False, rope: False",
        ),
        ("gguf-ready", {"pooling": "max"}, "does not support pooling max"),
        ("fork", {"rope_theta": 500.0}, "supports rope_theta 10000, but the model has 500"),
        ("fork", {"embedding_multiplier": 3.0}, "embedding_multiplier: 3.0 is not verified"),
        ("fork", {"tie_word_embeddings": False}, "decoder.weight differs"),
    ],
)
def test_a_format_that_would_change_the_model_is_refused(make_model, save, name, changes, reason):
    source = open_source([save(make_model(**changes))], None)
    with pytest.raises(ProjectError, match=reason) as caught:
        refuse_unsuitable(source, {each: load_writer(each) for each in ("hf", name)})
    assert (caught.value.code, caught.value.hint) == ("EXP011", "convert to other formats: --to hf")


@pytest.mark.parametrize("name", ["sentence-transformers", "gguf-ready", "fork"])
def test_a_classifier_is_refused_where_its_head_would_be_lost(make_model, save, name):
    source = open_source([save(NeoBERTForSequenceClassification(make_model().config))], None)
    assert "classif" in load_writer(name).refusal(source).lower()
    assert not load_writer("hf").refusal(source)
    refusal_of(open_source, "EXP009", "--pooling", [save(source.model, "again")], "avg")


@pytest.mark.parametrize(("name", "is_own"), [("hf", True), ("hf", False), (ST, False), ("onnx", False)])
def test_an_embedder_keeps_pooling_length_and_prompts(make_model, save, monkeypatch, name, is_own):
    """An exported folder had empty prompts, and the folder of a transformers model no pooling."""
    config = BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
    folder = save(make_model(**LARGE, pooling="max") if is_own else BertModel(config))
    prompts = {"query": "the a ", "passage": "c "}
    EmbeddingFiles("max", 64, 24, prompts, True, "passage", False).write(folder)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 12}')  # trained on shorter rows
    exported = run(folder, name) if name == "onnx" else unread(folder, name, monkeypatch)
    assert read_declared_settings(exported) == read_declared_settings(folder)
    if name == ST:
        sentence_transformers = pytest.importorskip("sentence_transformers")
        peer = sentence_transformers.SentenceTransformer(str(exported), device="cpu")
        encoder = Encoder.load(folder, device="cpu")
        wanted = encoder.encode(["text", "b c"], prompt=encoder.prompts.query_prompt)
        np.testing.assert_allclose(peer.encode_query(["text", "b c"]), wanted, atol=1e-5)


def test_a_transformers_encoder_gets_the_pooling_of_the_option(save):
    config = BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
    folder = save(BertForMaskedLM(config))
    weights = read_weights(folder)
    weights["bert.embeddings.position_ids"] = torch.arange(512)[None]  # as transformers before 4.31 saved it
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load_writer(ST).refusal(open_source([folder], None)) == (
        "BertForMaskedLM declares no pooling: pass --pooling avg, cls or max"
    )
    assert read_declared_settings(run(folder, ST, "cls")).pooling == "cls"


def test_the_mean_of_checkpoints_is_taken_in_fp32(make_model, save):
    models = [make_model().to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float32)]
    folders = [save(model, str(step)) for step, model in enumerate(models)]
    source = open_source(folders, None)
    wanted = [read_weights(folder) for folder in folders]
    for name, tensor in source.model.state_dict().items():
        mean = sum(each[name].double() for each in wanted) / 3
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-7)
    assert [origin["folder"] for origin in source.origin] == ["0", "1", "2"]
    load_mean_weights(source.model, folders[:1])
    assert torch.equal(source.model.model.encoder.weight, wanted[0]["model.encoder.weight"])


def test_checkpoints_of_different_models_have_no_mean(make_model, save):
    folders = [save(make_model(), "1"), save(make_model(rope_theta=500.0), "2")]
    refusal_of(open_source, "EXP008", "differs from 1/config.json in rope_theta", folders, None)


@pytest.mark.parametrize(
    "config", ["{", "[]", '{"model_type": "neobert", "architectures": ["os"]}', "{}", PRETRAINING]
)
def test_an_unknown_model_is_one_clear_error(checkpoint, config):
    (checkpoint / "config.json").write_text(config)
    refusal_of(open_source, "EXP007", "config.json has no supported model", [checkpoint], None)


def test_a_checkpoint_that_its_run_removed_meanwhile_is_told(tmp_path):
    refusal_of(open_source, "CKP007", "was removed while", [tmp_path / "20"], None)


def test_a_difference_is_relative_to_large_outputs_and_never_hides_nan():
    wanted = np.array([100.0, 1.0], dtype=np.float32)
    assert output_gaps({"x": wanted}, {"x": wanted + 1e-3})["x"] == pytest.approx(1e-5, rel=0.1)
    assert output_gaps({"x": wanted / 100}, {"x": wanted / 100 + 1e-3})["x"] == pytest.approx(1e-3, rel=0.1)
    for bad in ({}, {"x": wanted[:1]}, {"x": np.array([np.nan, 1.0])}):
        assert output_gaps({"x": wanted}, bad)["x"] == float("inf")
    assert output_gaps({"ids": np.array([5000])}, {"ids": np.array([5001])})["ids"] == 1.0


def test_a_model_of_transformers_has_the_formats_that_know_it(save):
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    model = BertForMaskedLM(BertConfig(vocab_size=64, max_position_embeddings=32, **shape)).eval()
    source = open_source([save(model)], None)
    refused = {name for name in FORMATS if load_writer(name).refusal(source)}
    assert refused == {"sentence-transformers", "gguf-ready", "fork"}


def test_the_example_fills_every_mask(checkpoint, monkeypatch, capsys):
    text = "the [MASK] reads [MASK]"
    monkeypatch.setattr(sys, "argv", ["mlm_predict.py", str(checkpoint), text, "[MASK]", "--top", "2"])
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(checkpoint.parent / "modules")
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="padding token"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    folder = unread(checkpoint, "hf", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["mlm_predict.py", str(folder), *sys.argv[2:]])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"{text!r}, token 2",
        f"{text!r}, token 4",
        "'[MASK]', token 1",
    ]
    assert all(len(line.partition(": ")[2].split(", ")) == 2 for line in lines)
    monkeypatch.setattr(sys, "argv", ["mlm_predict.py", str(folder), text, "nothing to fill"])
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    reported = capsys.readouterr()
    assert (ending.value.code, reported.out) == (2, "")
    assert "no [MASK] in the first" in reported.err
    assert "'nothing to fill'" in reported.err


def test_a_tokenizer_of_another_model_is_refused(make_model, save, tokenizer_dir):
    folder = save(make_model(vocab_size=24))
    refusal_of(open_source, "EXP001", "has ids up to 34, but the model has 24 embeddings", [folder], None)
    (folder / "tokenizer.json").write_text("{}")
    error = refusal_of(open_source, "EXP001", "is not a tokenizer", [folder], None)
    assert error.hint == "copy the files of the tokenizer used in training to this folder"


def test_a_tokenizer_without_padding_and_markers_is_exported(make_model, save):
    """As GPT-2's: its batches are padded with a token that no text attends to."""
    folder = save(make_model(pad_token_id=None))
    tokenizer_of("nothing", ["reads", "text"]).save_pretrained(folder)
    source = open_source([folder], None)
    assert source.tokenizer.pad_token == source.tokenizer.unk_token
    assert (make_reference(source).outputs["attention_mask"].sum(1) > 0).all()
    assert not load_writer("onnx").refusal(source)


def test_llama_cpp_is_refused_a_tokenizer_that_frames_texts_otherwise(make_model, save):
    folder = save(make_model())
    assert not load_writer("gguf-ready").refusal(open_source([folder], None))
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    source = open_source([folder], None)
    assert load_writer("gguf-ready").refusal(source).startswith("llama.cpp reads a text as [CLS] text [SEP]")


def test_weights_with_nan_are_named(make_model, save):
    model = make_model()
    with torch.no_grad():
        model.model.transformer_encoder[1].qkv.weight[0, 0] = float("nan")
    refusal_of(open_source, "EXP004", "encoder.1.qkv.weight has NaN or infinite values", [save(model)], None)


def test_a_model_of_very_short_rows_is_compared_on_parts_of_words(make_model, save):
    reference = make_reference(open_source([save(make_model(max_position_embeddings=4))], None))
    assert reference.outputs["input_ids"].shape == (4, 4)


def test_a_cross_encoder_gives_the_scores_of_a_regression_model(make_model, save, monkeypatch):
    """By default it would map a single label to 0..1 by a sigmoid."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    config = make_model(**LARGE, pooling="avg", num_labels=1, problem_type="regression").config
    model = NeoBERTForSequenceClassification(config).eval()
    with torch.no_grad():
        model.classifier.bias.fill_(3.5)
    folder = unread(save(model), "hf", monkeypatch)
    consumer = sentence_transformers.CrossEncoder(str(folder), trust_remote_code=True, device="cpu")
    pair = ("the model", "reads text")
    with torch.no_grad():
        expected = model(**consumer.tokenizer(*pair, return_tensors="pt")).logits[0, 0]
    assert expected > 1
    assert consumer.predict([pair])[0] == pytest.approx(float(expected), abs=1e-5)
