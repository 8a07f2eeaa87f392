"""Commands that tell: profiles, rule, explain, schema, plan; and those whose work a child does."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from launcher.commands import data
from neobert.config import all_keys
from neobert.config.schema.model import ModelConfig
from neobert.hub_names import snapshot_folder
from profiles.registry import list_profiles
from validators.rule import RETIRED, RULES

JSON = ("--output-format", "json")


def test_profiles_are_listed(command):
    listed = command("profiles", "list", *JSON).json["profiles"]
    assert {profile["name"] for profile in listed} == set(list_profiles())
    assert "a100-prod" in command("profiles", "list").out


def test_a_profile_s_values_have_origins(command):
    shown = command("profiles", "show", "a100-prod", *JSON).json
    others = {key for key in all_keys() if not key.startswith("model.")}
    assert set(shown["values"]) == others | {f"model.{each.name}" for each in fields(ModelConfig)}
    assert shown["values"]["trainer.save_steps"]["origin"]["file"].endswith("a100-prod.yaml")
    text = command("profiles", "show", "a100-prod").out
    assert "trainer.save_steps" in text
    assert "wandb.project" not in text
    assert "wandb.project" in command("profiles", "show", "a100-prod", "--verbose").out


def test_profiles_are_compared(command):
    changed = command("profiles", "diff", "a100-prod", "2xa100-prod", *JSON).json["keys"]
    assert changed["distributed.nproc_per_node"] == {"a100-prod": 1, "2xa100-prod": 2}
    assert "optimizer.lr" not in changed
    assert command("profiles", "diff", "a100-prod", "a100-prod").out == "no key differs\n"


def test_every_rule_has_a_page(command):
    listed = command("rule", "--all", *JSON).json["rules"]
    assert [rule["code"] for rule in listed] == sorted(RULES)
    assert all(command("rule", rule["code"]).out.startswith(rule["code"]) for rule in listed)
    assert command("rule", "no-save-cadence").out == command("rule", "ckp001").out


@pytest.mark.parametrize("code", sorted(RETIRED))
def test_a_retired_code_leads_to_the_rule_that_replaces_it(code, command):
    answer = command("rule", code)
    assert answer.out.startswith(RETIRED[code].successor)
    assert answer.err == f"{code} is retired: {RETIRED[code].successor} reports its findings\n"


def test_a_prefix_lists_its_family(command):
    for prefix in ("CKP", "ckp"):
        listed = [rule["code"] for rule in command("rule", prefix, *JSON).json["rules"]]
        assert listed == sorted(code for code in RULES if code.startswith("CKP"))
    assert command("rule", "CKP").out.count("\nCKP") == len(listed) - 1
    assert command("rule", "CKP001").out.startswith("CKP001 no-save-cadence\n")
    assert command("rule", "XYZ").code == 2


@pytest.mark.parametrize(
    ("name", "code", "output"),
    [
        ("hidden_size", 0, "model.hidden_size\n"),
        ("max_length", 0, "plan.max_length\n"),
        ("name", 2, "name the section: tokenizer.name, dataset.name, "),
        ("hiden_size", 2, "did you mean model.hidden_size?"),
        ("model.nhead", 2, "did you mean n_head of another trainer? write model.num_attention_heads"),
        ("model.qqqqqqq", 2, "lists the keys"),
        ("mask", 2, "keys about mask: datacollator.mask_all, plugins.masking, trainer.masked_logits_only"),
        ("mask", 2, "datacollator.mlm_probability, "),
    ],
)
def test_a_name_is_found_in_its_section(name, code, output, command):
    answer = command("explain", name)
    assert (answer.code, output in answer.out + answer.err) == (code, True), answer.out + answer.err


def test_the_committed_schema_is_current(command):
    committed = Path(__file__).parents[2] / "docs" / "neobert.schema.json"
    assert committed.read_text(encoding="utf-8") == command("schema").out, "run `make docs`"


def test_explain_says_value_origin_and_meaning(command):
    shown = command("explain", "trainer.save_steps", "-p", "a100-prod", *JSON).json
    assert shown["origin"]["kind"] == "profile"
    assert shown["description"]
    assert command("explain", "trainer.save_steps", *JSON).json["origin"]["kind"] == "default"
    implied = command("explain", "dataset.long_documents", "--task=classification").out.split()
    assert implied[implied.index("origin") + 1] == "follows"
    of_its_type = command("explain", "model.norm_eps", "-p", "nsa-smoke", *JSON).json
    assert (of_its_type["default"], of_its_type["origin"]["text"]) == (of_its_type["value"], "default")
    overridden = command("explain", "trainer.save_steps", "-p", "a100-prod", "--trainer.save_steps=9").out
    assert "command line, argument 1" in overridden
    assert "one of bf16, fp32, no" in command("explain", "trainer.mixed_precision").out
    assert "trainer.save_steps" in command("explain", "trainer").out


def test_plan_has_reasons(command):
    plan = command("plan", "-p", "a100-prod", *JSON).json["plan"]
    assert plan["world_size"]["value"] == 1
    assert all(item["reason"] for item in plan.values())
    text = command("plan", "-p", "a100-prod", "--verbose", "--guard.price_per_gpu_hour", "2").out
    for name in ("model", "work at risk", "checkpoint", "learning rate, AdamW", "cost", "memory per device"):
        assert f"\n  {name}: " in text


def test_plan_shows_the_rates_of_both_rules_of_muon(command):
    words = ("plan", "-p", "cpu-demo", "--optimizer.lr=0.001")
    muon = command(*words, "--optimizer.name=muon", "--optimizer.muon_lr=0.02").out
    assert re.search(r"rate, Muon +2e-06 -> peak 0.02 -> .* \(matrices of the blocks\)\n", muon)
    assert re.search(r"rate, AdamW +1e-07 -> peak 0.001 -> .* \(all other weights\)\n", muon)
    assert re.search(r"learning rate +1e-07 -> peak 0.001 -> ", command(*words, "--optimizer.name=lion").out)


COMMIT = "a" * 40
WEIGHTS, REVISION = ("--model.pretrained_checkpoint",), ("--model.revision", COMMIT)


@pytest.mark.parametrize(
    ("weights", "settings", "pooling"),
    [
        ([], {}, "avg"),
        ([*WEIGHTS, "."], {}, "avg (the weights declare none)"),
        ([*WEIGHTS, "."], {"pooling": "cls"}, "avg (the weights declare cls)"),
        ([*WEIGHTS, "."], {"pooling": "avg"}, "avg"),
        ([*WEIGHTS, "owner/name", *REVISION], {"pooling": "cls"}, "avg (the weights declare cls)"),
        ([*WEIGHTS, "owner/other", *REVISION], {}, "avg"),
    ],
)
def test_plan_states_pooling_and_prompts(weights, settings, pooling, command, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", "hub")
    downloaded = snapshot_folder("owner/name", COMMIT)
    downloaded.mkdir(parents=True)
    for folder in (Path(), downloaded):
        (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    words = ["plan", "-p", "contrastive-demo", *weights]
    rows = [" ".join(line.split()) for line in command(*words).out.splitlines()]
    assert f"pooling {pooling}" in rows
    assert "prompts query 'query: ', document none" in rows


def test_plan_refuses_what_lint_refuses(command):
    words = ("plan", "-p", "cpu-demo", "--set", "model.num_attention_heads=7")
    refused = command(*words)
    assert refused.code == 1
    assert "fail MOD002 illegal-shape" in refused.out
    report = command(*words, *JSON).json
    assert (report["verdict"], report["exit_code"]) == ("fail", 1)
    assert [finding["code"] for finding in report["findings"]] == ["MOD002"]
    assert report["plan"]["num_parameters"]["value"] > 0
    assert "MOD" not in command("plan", "-p", "cpu-demo").out


def test_a_run_file_trains_with_the_published_recipe_in_one_line(command, run_file):
    recipe = " ".join(command("plan", "-p", "h100-prod").out.split())
    assert "peak 0.002" in recipe
    assert "was measured with" not in recipe
    published = command("plan", run_file("profile: h100-prod\npretraining: null\n"))
    assert "peak 0.0006" in published.out
    assert "h100-prod was measured with" in " ".join(published.out.split())
    assert command("plan", "-p", "h100-prod", "pretraining=null").out.startswith(published.out)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A module that stands in for the heavy half."""

    def write(program: str) -> None:
        (tmp_path / "pretended_child.py").write_text(program, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        for name in ("PREPARE", "TRAIN_TOKENIZER"):
            monkeypatch.setattr(data, name, "pretended_child")

    return write


REPORTS = """
import json, sys
config = json.load(open(sys.argv[1]))
print(json.dumps({"profile": config["profile"], "rest": sys.argv[2:], "train": {"tokens": 12345}}))
"""
REFUSES = """
import sys
from neobert.errors import ProjectError, write_error_file
error = ProjectError("DAT004", "no text is left", "check the source", "x.txt", 1)
write_error_file(error) or print(error, file=sys.stderr)
sys.exit(1)
"""


@pytest.mark.child
def test_prepare_prints_the_child_s_report(command, pretended):
    pretended(REPORTS)
    answer = command("data", "prepare", "-p", "cpu-demo", *JSON)
    assert (answer.code, answer.json["profile"]) == (0, "cpu-demo")
    assert "training text  12,345 tokens" in command("data", "prepare", "-p", "cpu-demo").out


@pytest.mark.child
def test_text_is_prepared_without_a_run_file(command, pretended):
    pretended("import json, sys\nprint(json.dumps(json.load(open(sys.argv[1])) | {'rest': sys.argv[2:]}))")
    Path("novels").mkdir()
    words = ("data", "prepare", "--dataset", "novels", "--max-length", "64", "--dataset.eval_samples", "9")
    found = command(*words, "--tokenizer", "owner/tok", "-o", "prepared", *JSON).json
    keys = ("path", "name", "max_seq_length", "eval_samples")
    assert [found["dataset"][key] for key in keys] == [str(Path("novels").absolute()), None, 64, 9]
    assert (found["tokenizer"]["name"], found["tokenizer"]["path"]) == ("owner/tok", None)
    assert found["rest"] == [str(Path("prepared").absolute())]
    command("data", "prepare", "--dataset", "novel").refused(
        2, "novel: no such file or folder [unusable-path]", "pass an existing file or folder as --dataset"
    )


@pytest.mark.child
def test_a_tokenizer_goes_into_a_new_folder(command, pretended):
    pretended(REPORTS)
    words = ("tokenizer", "train", "-p", "cpu-demo", "--output", "tok")
    assert command(*words, *JSON).json["rest"] == ["tok"]
    Path("tok").mkdir()
    Path("tok", "tokenizer.json").touch()
    command(*words).refused(2, "the folder is not empty")
    command("tokenizer", "train", "-p", "cpu-demo", "--output", "tok/tokenizer.json").refused(
        2, "is a file, but"
    )


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        (REFUSES, 1, "error: x.txt: no text is left [DAT004]\n  = hint: check the source\n"),
        # A full disk has no space for the report of the full disk.
        (
            "import os, sys; open(os.environ['NEOBERT_ERROR_FILE'], 'w'); sys.exit('the disk is full')",
            4,
            "the disk is full\nerror: pretended_child exited with code 1 [child-failed]",
        ),
        ("import sys; sys.exit(7)", 4, "exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 4, "killed by SIGKILL"),
        (
            "import os; os.abort()",
            4,
            "allocate memory [child-failed]\n  = hint: see the output above; if",
        ),
    ],
)
@pytest.mark.child
def test_what_the_child_refuses_is_told_once(program, code, says, command, pretended):
    """A child leaves its error to the launcher, whose errors all look alike."""
    pretended(program)
    answer = command("data", "prepare", "-p", "cpu-demo")
    assert answer.code == code
    assert answer.err.count(says) == 1
    report = command("data", "prepare", "-p", "cpu-demo", *JSON).json
    assert report["exit_code"] == code
    assert report["findings"][0]["code"] in ("DAT004", "child-failed")


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_prepare_for_true(run_child, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(["some words of a short text"] * 200), encoding="utf-8")
    words = [
        "dataset.name=null",
        "dataset.path=text.txt",
        "dataset.cache_dir=cache",
        "tokenizer.vocab_size=256",
        "dataset.eval_samples=10",
    ]
    options = [part for word in words for part in ("--set", word)]
    answer = run_child("data", "prepare", "-p", "cpu-demo", *options, "-o", "prepared", *JSON).passed()
    assert json.loads(answer.out)["folder"] == str(tmp_path / "prepared")


def test_commands_write_json_through_the_function_that_adds_the_version():
    """Results of long commands too: a command that calls `to_json` itself would lack the version."""
    files = sorted(Path(data.__file__).parent.glob("*.py"))
    assert [file.name for file in files if re.search(r"\bto_json\b", file.read_text())] == []


def test_the_verbose_plan_names_kernels_and_attention(command):
    shown = command("plan", "-p", "h200-prod", "--set", "model.kernel_backend=auto", "--verbose").out
    assert "kernels: fused, attention triton_packed" in shown
    assert "with triton and quack-kernels" in shown
