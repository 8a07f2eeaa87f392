"""Every spelling of a config file and of an override means the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.arguments import KEYS_WITHOUT_SECTION, MisplacedArgumentError, rewrite_tokens
from neobert.config import all_keys

WITH_VALUE = {"--profile", "-p", "--config", "-c", "--set", "--output"}
KEYS = st.from_regex(r"[a-z_]{1,8}\.[a-z_]{1,8}", fullmatch=True)
VALUES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)


@given(KEYS, VALUES)
def test_every_spelling_agrees(key, value):
    spellings = ([f"--{key}", value], [f"--{key}={value}"], [f"{key}={value}"], ["--set", f"{key}={value}"])
    assert {tuple(rewrite_tokens(spelling, WITH_VALUE)) for spelling in spellings} == {
        ("--set", f"{key}={value}")
    }


def test_the_order_stays():
    tokens = ["@a.yaml", "x.y=1", "@", "b.yaml", "--x.y", "2"]
    assert rewrite_tokens(tokens, WITH_VALUE) == [
        "--config", "a.yaml", "--set", "x.y=1", "--config", "b.yaml", "--set", "x.y=2",
    ]  # fmt: skip


def test_values_of_options_are_left_alone():
    tokens = ["--output", "a=b", "-c", "@odd.yaml", "--strict", "--set", "a.b=--c.d"]
    assert rewrite_tokens(tokens, WITH_VALUE) == tokens


def test_negative_numbers_are_values_and_options_are_not():
    assert rewrite_tokens(["--a.b", "-1"], WITH_VALUE) == ["--set", "a.b=-1"]
    assert rewrite_tokens(["--a.b", "--strict"], WITH_VALUE) == ["--set", "a.b", "--strict"]


def test_a_value_beside_its_key_is_told_the_sign_between_them():
    with pytest.raises(MisplacedArgumentError, match=r"'--set a\.b=-1'"):
        rewrite_tokens(["--set", "a.b", "-1"], WITH_VALUE)
    tokens = ["--set", "a.b", "--set", "a.c", "--strict", "--set", "a.d"]
    assert rewrite_tokens(tokens, WITH_VALUE) == tokens
    assert rewrite_tokens(["--set", "a.b", "a.c=1"], WITH_VALUE) == ["--set", "a.b", "--set", "a.c=1"]


def test_keys_without_a_section_are_options_too():
    scalars = {key for key in all_keys() if "." not in key}
    assert scalars - {"profile", "variables", "waivers"} == set(KEYS_WITHOUT_SECTION)
    assert rewrite_tokens(["--seed", "9", "--seed=8"], WITH_VALUE) == [
        "--set",
        "seed=9",
        "--set",
        "seed=8",
    ]


@pytest.mark.parametrize(
    "tokens",
    [
        ["@", "run.yaml"], ["@run.yaml"], ["run.yaml"],
        ["--seed", "9", "--trainer.max_steps=9", "--trainer.max_steps", "77"],
    ],
)  # fmt: skip
def test_through_the_command(tokens, command, run_file):
    run_file("trainer:\n  max_steps: 77\n")
    answer = command("explain", "trainer.max_steps", "-p", "cpu-demo", *tokens, "--output-format", "json")
    assert answer.json["value"] == 77


def test_underscores_in_flags_are_dashes(command):
    answer = command(
        "train", "-p", "cpu-demo", "--nproc_per_node", "2", "--dry-run", "--output-format", "json"
    )
    assert "--nproc-per-node" in answer.json["command"]


def test_torchrun_gets_the_rest(command):
    answer = command(
        "train", "-p", "cpu-demo", "--dry-run", "--output-format", "json", "--", "--max-restarts", "1"
    )
    words = answer.json["command"]
    assert words[words.index("--max-restarts") + 1] == "1"
    assert "--" not in words


@pytest.mark.child
def test_a_checkpoint_is_a_path_whatever_its_name_looks_like(command):
    answer = command("train", "-p", "cpu-demo", "--resume", "40")
    assert answer.code == 1
    assert "CKP007 broken-resume-target: 40 does not exist" in answer.out


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (["plan", "missing.yaml"], "missing.yaml"),
        (["plan", "-p", "cpu-demo", "--output-formt", "json"], "--output-format"),
        (["lnt"], "Did you mean 'lint'?"),
        (["dpo", "--model", "x"], "no such command 'dpo'; use TRL: preferences and RL are not trained here"),
        (["plan", "-p", "cpu-demo", "--", "x"], "unexpected extra argument"),
        (["train", "runs"], "unexpected extra argument (runs): a run file ends in .yaml, .yml, .toml"),
        (
            ["init", "--text", __file__, __file__],
            "--text takes one path, and the shell passed 2 files: quote the pattern, or pass the folder",
        ),
        (["plan"], "no profile or run file is given"),
        (["plan", "-p", "cpu-demo", "--set", "seed", "9"], "Did you mean '--set seed=9'?"),
        (["plan", "-p", "cpu-demo", "--set", "seed="], "write seed=VALUE, or omit the argument"),
        (["plan", "-p", "cpu-demo", "--trainer.max_steps"], "write trainer.max_steps=VALUE"),
        (["preflight", "-p", "cpu-demo", "--level", "hots"], "'hots' is not a level"),
        (["rule", "CPK001"], "did you mean CKP001?"),
        (["rule", "dat099"], "error codes have no page"),
        (["rule", "ckp01"], "did you mean one of CKP010, CKP011, CKP012, "),
        (["rule", ""], "`neobert-launch rule --all` lists the rules"),
        (["rule", "trainer.save_steps"], "trainer.save_steps is a config key: `neobert-launch explain"),
        (["explain", "ckp001"], "CKP001 is a rule: `neobert-launch rule CKP001`"),
        (["explain", "trainer.save_step"], "did you mean trainer.save_steps?"),
        (["explain", "learning_rate"], "write optimizer.lr"),
        (["explain", "lerning_rate"], "learning_rate of another trainer? write optimizer.lr"),
        (["explain", "max_len"], "keys about max_len: tokenizer.max_length, dataset.max_seq_length,"),
        (["explain", "variables.steps"], "explain variables"),
        (["plan", "-p", "cpu-demo", "--max_steps", "5"], "did you mean --trainer.max_steps? see `"),
        (["train", "-p", "cpu-demo", "--lr=1e-3"], "did you mean --optimizer.lr? see `"),
        (
            ["plan", "-p", "cpu-demo", "--learning-rate", "1"],
            "--learning-rate [usage]\n  = hint: did you mean --optimizer.lr?",
        ),
        (
            ["sft", "--model_name_or_path", "x"],
            "--model_name_or_path [usage]\n  = hint: did you mean --from?",
        ),
        (["train", "--model-name", "gpt2", "--text", "notes"], "gpt2: no such folder"),
        (["train", "-p", "cpu-demo", "--task", "dpo"], "TRL trains on preferences"),
        (
            ["pretrain", "-p", "cpu-classify"],
            "task is classification, but `pretrain` trains only",
        ),
        (["train", "-p", "cpu-demo", "--steps", "0"], "--steps"),
        (
            ["train", "-p", "cpu-demo", "--unguarded", "x"],
            "error: --unguarded launches even if checks fail",
        ),
        (["init", "--size", "huge"], "for '--size': 'huge' is not one of 'tiny', 'small', 'base'"),
        (["lint", "--profile", "cpu-demo"], "no such option: --profile [usage]\n  = hint: see `"),
        (
            ["train", "--epochs", "3"],
            "no such option: --epochs [usage]\n  = hint: did you mean --trainer.max_epochs?",
        ),
        (["train", "--config"], "requires an argument [usage]\n  = hint: see `neobert-launch train --"),
        (["train", "run.yaml", "--resume"], "argument [usage]\n  = hint: see `neobert-launch train --help`"),
        (["search", "--top"], "argument [usage]\n  = hint: see `neobert-launch search --help`"),
        (["search", "a query"], "[usage]\n  = hint: write `neobert-launch search [OPTIONS] DIR QUERY`"),
        (
            ["submit"],
            "missing option '--to'. Choose from: slurm, skypilot, kubernetes [usage]\n  = hint: see `",
        ),
        (["train", "--nnodes", "two"], "invalid value for '--nnodes': should be a valid integer ["),
        (["train", "--task"], "task has no value"),
        (["lint", "x.yaml", "--select", "CPK"], "no rule code starts with CPK"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(tokens, says, command):
    answer = command(*tokens).refused(2, says)
    assert "Traceback" not in answer.err
