"""A folder loads through transformers' own front doors, here and where the project is not installed."""

import ast
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import neobert.model
from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.errors import ProjectError
from neobert.export import write_hf_folder
from neobert.export.card import POOLED
from neobert.export.folder import drop_inert_tokens, read_tokenizer_files
from neobert.export.modeling_code import CONFIGURATION, MODELING, import_order, modeling_code
from neobert.kernel_table import ATTENTION, find_attention_kernels
from neobert.model import NeoBERT, NeoBERTForSequenceClassification, NeoBERTLMHead
from neobert.model.configuration_neobert import AUTO_MAP
from neobert.plan.vocabulary import INERT_TOKEN

CARRIED_IMPORTS = {
    "__future__", "collections", "contextlib", "dataclasses", "functools", "importlib", "inspect",
    "itertools", "math", "pathlib", "shutil", "typing",
}  # fmt: skip
OUTSIDE_IMPORTS = {"torch", "transformers"}


def digests(model) -> dict[str, str]:
    return {name: sha256(x.numpy().tobytes()).hexdigest() for name, x in model.state_dict().items()}


def same_bits(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


def test_the_folder_holds_all_that_a_loader_needs(make_model, tokenizer_dir, tmp_path):
    folder = tmp_path / "200"
    write_hf_folder(make_model(), read_tokenizer_files(tokenizer_dir), folder)
    names = {path.name for path in folder.iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    } <= names
    assert {name for name in names if name.endswith(".py")} == {f"{CONFIGURATION}.py", f"{MODELING}.py"}
    assert not [name for name in names if name.endswith((".bin", ".pt", ".tmp"))]


@pytest.mark.parametrize("tied", [True, False])
def test_every_front_door_opens_here(make_model, tmp_path, tied):
    model = make_model(tie_word_embeddings=tied)
    write_hf_folder(model, None, tmp_path / "out")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert isinstance(loaded, NeoBERTLMHead)
    assert same_bits(loaded, model)
    assert (loaded.decoder.weight.data_ptr() == loaded.model.encoder.weight.data_ptr()) == tied
    assert same_bits(AutoModel.from_pretrained(tmp_path / "out"), model.model)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", num_labels=3)
    assert isinstance(classifier, NeoBERTForSequenceClassification)
    assert same_bits(classifier.model, model.model)


def test_trust_changes_nothing_here(make_model, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    model = make_model(tie_word_embeddings=True)
    write_hf_folder(model, None, tmp_path / "200")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "200", trust_remote_code=True)
    assert type(loaded) is NeoBERTLMHead
    assert same_bits(loaded, model)
    assert loaded.decoder.weight.data_ptr() == loaded.model.encoder.weight.data_ptr()


def load_elsewhere(python: str, *folders: Path) -> list[dict]:
    """Load folders in a process that has not this project; return what it reports of each.

    The process ends by loading the first without trust, before and after an import of this project.
    """
    place = folders[0].parent
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(place / "modules")}
    script = Path(__file__).with_name("load_elsewhere.py")
    done = subprocess.run(
        [python, "-I", str(script), *map(str, folders)],
        env=environment,
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.e2e
def test_it_loads_where_the_project_is_not_installed(make_model, tokenizer_dir, tmp_path, warm_python):
    """Tied, untied, and saved again after training here; one process without the project loads them."""
    models = {
        tmp_path / f"{name}-1.0": make_model(tie_word_embeddings=name == "tied")
        for name in ("tied", "untied")
    }
    for folder, model in models.items():
        write_hf_folder(model, read_tokenizer_files(tokenizer_dir), folder)
    models[tmp_path / "tuned-1.0"] = tune(tmp_path / "untied-1.0", tmp_path / "tuned-1.0")
    for (folder, model), report in zip(models.items(), load_elsewhere(warm_python, *models), strict=True):
        assert report["module"] == "transformers_modules"
        assert report["imported"] == []
        assert report["kernel_for_short_rows"] in {kernel.name for kernel in find_attention_kernels("auto")}
        assert report["weights"] == digests(model)
        assert report["is_tied"] == folder.name.startswith("tied")
        assert report["packed_error"] < 1e-5
        assert report["encoder_error"] == 0.0
        assert report["tokens_error"] == 0.0
        with torch.no_grad():
            assert report["logits"] == model.eval()(torch.arange(9, 14)[None]).logits[0].tolist()
        assert report["saved_again"] == sorted(path.name for path in folder.glob("*.py"))
        assert len(report["filled"]) == 5
    card = (tmp_path / "tied-1.0" / "README.md").read_text()
    assert "or `import neobert.model` first if `neobert-launch` is installed." in card


def tune(trained: Path, tuned: Path) -> torch.nn.Module:
    """Save a changed weight with transformers' own writers: a file per module, as earlier versions wrote."""
    model = AutoModelForMaskedLM.from_pretrained(trained)
    torch.nn.init.constant_(model.model.layer_norm.weight, 2.0)
    model.save_pretrained(tuned)
    AutoTokenizer.from_pretrained(trained).save_pretrained(tuned)
    assert {path.stem for path in tuned.glob("*.py")} == set(import_order(MODELING, package_trees()))
    return model


def package_trees() -> dict[str, ast.Module]:
    files = Path(neobert.model.__file__).parent.glob("*.py")
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in files}


def test_every_front_door_of_what_is_saved_again_leads_to_the_code_beside_it(make_model, tmp_path):
    write_hf_folder(make_model(), None, tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(config.read_text().replace("modeling_neobert.", "someone/NeoBERT--model."))
    for model in (NeoBERTLMHead.from_pretrained(tmp_path / "theirs"), make_model()):
        model.save_pretrained(tmp_path / "ours")
        written = json.loads((tmp_path / "ours" / "config.json").read_text())["auto_map"]
        assert written.keys() == AUTO_MAP.keys()
        assert {name.split(".")[0] for name in written.values()} == {
            "configuration_neobert",
            "modeling_neobert",
        }


def test_the_modeling_files_import_torch_and_transformers_only():
    for name, code in modeling_code().items():
        tree = ast.parse(code)
        attempts = (node for node in ast.walk(tree) if isinstance(node, ast.Try))
        guarded = {each for node in attempts for each in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert (name, node.module) == (f"{MODELING}.py", CONFIGURATION)
            elif isinstance(node, ast.Import | ast.ImportFrom) and node not in guarded:
                roots = (
                    [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
                )
                assert {root.split(".")[0] for root in roots} <= CARRIED_IMPORTS | OUTSIDE_IMPORTS, name


def test_no_merged_module_defines_a_name_of_another():
    for code in modeling_code().values():
        body = ast.parse(code).body
        names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
        imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        names += [alias.asname or alias.name for node in imports for alias in node.names]
        assert [name for name, times in Counter(names).items() if times > 1 and name != "_"] == []


def test_the_entry_file_names_every_sibling_itself():
    """Older transformers copy what auto_map's files import, and not what those imports import in turn."""
    trees = package_trees()
    named = {node.module for node in trees[MODELING].body if isinstance(node, ast.ImportFrom) and node.level}
    assert named | {MODELING} == set(import_order(MODELING, trees))
    loaded = {
        kernel.loader[1:].partition(":")[0] for kernel in ATTENTION.values() if kernel.loader[:1] == "."
    }
    assert loaded <= named, "an exported checkpoint lacks the kernel"


def test_the_configuration_carries_no_choice_of_this_machine(make_model, tmp_path):
    model = make_model(attn_backend="torch_varlen")
    write_hf_folder(model, None, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["attn_backend"], written["kernel_backend"]) == ("auto", "torch")
    assert model.config.attn_backend == "torch_varlen"
    assert not hasattr(model.config, "auto_map")
    assert written["auto_map"] == AUTO_MAP
    assert AutoConfig.from_pretrained(tmp_path).norm_eps == model.config.norm_eps


def test_the_tokenizer_is_the_same_under_the_name_that_all_know(make_model, tokenizer_dir, tmp_path):
    write_hf_folder(make_model(), read_tokenizer_files(tokenizer_dir), tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    source, copied = (AutoTokenizer.from_pretrained(path) for path in (tokenizer_dir, tmp_path / "out"))
    text = "the model reads a [MASK] text"
    assert copied(text) == source(text)
    assert copied.special_tokens_map == source.special_tokens_map


def test_writing_twice_gives_the_same_bytes(make_model, tokenizer_dir, tmp_path):
    model = make_model()
    for name in ("one", "two"):
        write_hf_folder(model, read_tokenizer_files(tokenizer_dir), tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_the_card_shows_labels_as_they_are(make_model, tmp_path):
    config = make_model(id2label={0: "*ok* <b>", 1: "r\u00e9 #1", 2: "B-PER"}).config
    write_hf_folder(NeoBERTForSequenceClassification(config), None, tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "\nLabels: \\*ok\\* &lt;b&gt;, r\u00e9 \\#1, B-PER.\n" in card


@pytest.mark.parametrize(("pooling", "words"), [("avg", "the mean of"), ("cls", "of the first token")])
def test_the_card_states_the_pooling_of_the_configuration(make_model, tmp_path, pooling, words):
    write_hf_folder(make_model(pooling=pooling), None, tmp_path)
    assert (
        f"An embedding of a text is {POOLED[pooling]} (`config.pooling`)"
        in (tmp_path / "README.md").read_text()
    )
    assert words in POOLED[pooling]
    assert AutoConfig.from_pretrained(tmp_path).pooling == pooling


def test_the_card_names_all_layers_that_an_adapter_has_to_keep(make_model, tmp_path):
    write_hf_folder(make_model(), None, tmp_path)
    _, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    fresh = sorted({key.split(".")[0] for key in info["missing_keys"]}, reverse=True)
    assert f"modules_to_save={json.dumps(fresh)}" in (tmp_path / "README.md").read_text()


def test_a_checkpoint_has_the_tokens_of_its_tokenizer_and_no_others(tokenizer_dir, tmp_path):
    """Earlier versions padded the vocabulary of every prepared text to a multiple of 128."""
    bundle = load_tokenizer(TokenizerConfig(path=str(tokenizer_dir)))
    padded = AutoTokenizer.from_pretrained(tokenizer_dir)
    padded.add_tokens([INERT_TOKEN.format(number) for number in range(bundle.vocab_size - len(padded))])
    padded.save_pretrained(tmp_path / "padded")
    padded = read_tokenizer_files(tmp_path / "padded")
    assert drop_inert_tokens(padded, bundle.vocab_size) is padded
    for name, content in drop_inert_tokens(padded, bundle.num_tokens).items():
        (tmp_path / "padded" / name).write_bytes(content)
    ours, theirs = (AutoTokenizer.from_pretrained(each) for each in (tmp_path / "padded", tokenizer_dir))
    assert bundle.vocab_size > len(ours) == len(theirs) == bundle.num_tokens
    assert ours.get_vocab() == theirs.get_vocab()


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProjectError) as caught:
        read_tokenizer_files(tmp_path / "empty")
    assert caught.value.code == "EXP001"
    assert caught.value.place == str(tmp_path / "empty")


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_does_not_load_with_its_decoder_tied_otherwise(make_model, tmp_path, tied):
    write_hf_folder(make_model(tie_word_embeddings=tied), None, tmp_path)
    with pytest.raises(ValueError, match=r"\bno decoder of its own" if tied else r"\ba decoder of its own"):
        NeoBERTLMHead.from_pretrained(tmp_path, tie_word_embeddings=not tied)


def test_a_head_that_the_checkpoint_lacks_is_initialised_with_a_warning(
    make_model, tmp_path, caplog, monkeypatch
):
    encoder = make_model().model
    encoder.save_pretrained(tmp_path)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model, info = NeoBERTLMHead.from_pretrained(tmp_path, output_loading_info=True)
    assert sorted(info["missing_keys"]) == ["decoder.bias", "decoder.weight"]
    assert "decoder.weight" in caplog.text
    assert 0 < model.decoder.weight.abs().max() <= encoder.config.decoder_init_range
    assert torch.equal(model.model.encoder.weight, encoder.encoder.weight)


@pytest.mark.parametrize("kind", [NeoBERT, NeoBERTLMHead, NeoBERTForSequenceClassification])
def test_a_missing_weight_of_the_encoder_is_refused_by_name(make_model, tmp_path, kind):
    write_hf_folder(make_model(), None, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.transformer_encoder.1.wo.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights .*\(1, .*transformer_encoder\.1\.wo\.weight"):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize("door", sorted(AUTO_MAP.keys() - {"AutoConfig"}))
def test_every_head_loads_the_encoder_and_names_its_new_weights(make_model, tmp_path, door):
    model = make_model()
    write_hf_folder(model, None, tmp_path)
    loaded, info = getattr(transformers, door).from_pretrained(tmp_path, output_loading_info=True)
    assert same_bits(getattr(loaded, "model", loaded), model.model)
    assert all(name.startswith(loaded.fresh_parts) for name in info["missing_keys"])
    assert bool(info["missing_keys"]) == (door not in ("AutoModel", "AutoModelForMaskedLM"))
    assert not info["unexpected_keys"]


def test_another_rope_theta_is_refused_at_load_and_taken_from_a_config(make_model, tmp_path):
    write_hf_folder(make_model(), None, tmp_path)
    for load in (AutoConfig, AutoModel, NeoBERTLMHead):
        with pytest.raises(ValueError, match="rope_theta 160000 differs from the 10000 that the weights"):
            load.from_pretrained(tmp_path, rope_theta=160_000.0)
        load.from_pretrained(tmp_path, rope_theta=10_000)
    config = AutoConfig.from_pretrained(tmp_path)
    config.rope_theta = 160_000.0
    extended = AutoModel.from_pretrained(tmp_path, config=config)
    extended.save_pretrained(tmp_path / "extended")
    assert AutoConfig.from_pretrained(tmp_path / "extended").rope_theta == 160_000.0
