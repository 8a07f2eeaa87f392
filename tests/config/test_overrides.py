import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import COMMAND_LINE, ConfigError, all_keys, parse_overrides, resolve, to_dict
from neobert.config.key_suggestions import describe_key
from neobert.config.overrides import format_text_override


def resolved(*tokens: str):
    return resolve([], parse_overrides(tokens))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("trainer.max_steps", "500", 500),
        ("trainer.gradient_checkpointing", "true", True),
        ("trainer.gradient_clipping", "null", None),
        ("dataset.shuffle_buffer_size", "0", 0),
        ("dataset.train_split", "train[:1%]", "train[:1%]"),
        ("dataset.path", "/data/a b#1.txt", "/data/a b#1.txt"),
        ("dataset.path", "C:\\x=y", "C:\\x=y"),
        ("optimizer.lr", "6e-4", 6e-4),
        ("optimizer.lr", "1", 1.0),
        ("optimizer.betas", "[0.9, 0.95]", (0.9, 0.95)),
        ("scheduler.total_steps", "0o17", 15),
        ("wandb.name", '"12"', "12"),
        ("wandb.name", "'a: b'", "a: b"),
    ],
)
def test_every_spelling_gives_the_same_configuration(path, value, expected):
    spellings = [[f"{path}={value}"], [f"--{path}={value}"], [f"--{path}", value]]
    digests = {resolved(*spelling).digest for spelling in spellings}
    assert len(digests) == 1
    section, _, key = path.rpartition(".")
    holder = resolved(*spellings[0]).config
    found = getattr(getattr(holder, section) if section else holder, key)
    assert found == expected
    assert type(found) is type(expected)


@given(
    st.sampled_from(["40", "true", "null", "[a]/b", '"a', " 7", "1e3", "runs/a b", "auto"])
    | st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=9)
)
def test_a_text_arrives_as_it_is_whatever_it_looks_like(text):
    assert resolved(format_text_override("wandb.name", text)).config.wandb.name == text


def test_the_space_at_the_end_of_a_prompt_is_kept():
    prompt = "contrastive.query_prompt=query: "
    found = resolved("task=contrastive", prompt, "optimizer.lr= 1e-4 ", "scheduler.name= cosine").config
    assert found.contrastive.query_prompt == "query: "
    assert (found.optimizer.lr, found.scheduler.name) == (1e-4, "cosine")


def test_a_text_that_needs_no_quotes_gets_none():
    assert (
        format_text_override("trainer.resume_from_checkpoint", "auto")
        == "trainer.resume_from_checkpoint=auto"
    )


def test_quotes_are_told_so_that_the_shell_leaves_them():
    with pytest.raises(ConfigError) as caught:
        resolved("trainer.output_dir=2026")
    assert caught.value.issues[0].hint.endswith(""": '"2026"'""")


def test_every_key_can_be_overridden():
    for key in set(all_keys()) - {"variables", "waivers"}:
        chosen = [f"{key.rpartition('.')[0]}.type={tag}" for tag in describe_key(key).tags[:1]]
        default = resolved(*chosen)
        value = to_dict(default.config)
        for name in key.split("."):
            value = value[name]
        resolution = resolved(*chosen, f"--{key}={value if isinstance(value, str) else json.dumps(value)}")
        assert resolution.digest == default.digest, key
        assert resolution.origins[key].kind == "override"


def test_a_switch_needs_no_value():
    config = resolved("--trainer.torch_compile", "--datacollator.mask_all", "seed=3").config
    assert (config.trainer.torch_compile, config.datacollator.mask_all, config.seed) == (True, True, 3)


def test_any_other_key_needs_one():
    with pytest.raises(ConfigError) as caught:
        parse_overrides(["--trainer.output_dir", "--seed", "3"])
    (issue,) = caught.value.issues
    assert issue.message == "--trainer.output_dir needs a value"
    assert (caught.value.exit_code, issue.line, issue.source_line) == (2, 1, "--trainer.output_dir")


def test_a_negative_number_is_a_value():
    with pytest.raises(ConfigError, match="of at least 0, got -1"):
        resolved("--seed", "-1")


def test_the_later_one_wins():
    resolution = resolved("seed=1", "--seed=2", "--seed", "3")
    assert resolution.config.seed == 3
    assert resolution.origins["seed"].line == 3


def test_lists_of_mappings_are_flow_yaml():
    text = "[{code: BUD001, reason: agreed in the review, expires: 2026-12-31}]"
    (waiver,) = resolved(f"--waivers={text}").config.waivers
    assert waiver.code == "BUD001"


@pytest.mark.parametrize(
    ("tokens", "code", "line", "column", "source_line", "words"),
    [
        (["seed=1", "trainer.max_step=5"], "CFG001", 2, 1, "trainer.max_step=5", "trainer.max_steps?"),
        (["--model.save_steps", "5"], "CFG001", 1, 3, "--model.save_steps 5", "write trainer.save_steps"),
        (["trainer.max_ckpt=5"], "CFG007", 1, 1, "trainer.max_ckpt=5", "trainer.save_total_limit"),
        (["--trainer.max_steps", "5.0"], "CFG003", 1, 21, "--trainer.max_steps 5.0", "write 5"),
        (["--trainer.tf32", "no"], "CFG003", 1, 16, "--trainer.tf32 no", "write false"),
        (["optimizer.betas=[0.9, 2]"], "CFG003", 1, 23, "optimizer.betas=[0.9, 2]", "below 1, got 2"),
        (["optimizer.betas=[0.9"], "CFG003", 1, 17, "optimizer.betas=[0.9", "YAML"),
        (["optimizer.betas=[0.9] x"], "CFG003", 1, 23, "optimizer.betas=[0.9] x", "YAML"),
        (["optimizer={lr: 1, lr: 2}"], "CFG002", 1, 19, "optimizer={lr: 1, lr: 2}", "set twice"),
        (["wandb.name=\udcff"], "CFG003", 1, 12, "wandb.name=\udcff", "not valid Unicode"),
        (
            ["wandb.name=$variables.x"],
            "CFG012",
            1,
            12,
            "wandb.name=$variables.x",
            "variable x is not defined",
        ),
        (["seed.x=1"], "CFG003", 1, 1, "seed.x=1", "an integer of at least 0, got a mapping"),
        (["nonsense"], "CFG001", 1, 1, "nonsense", "is not an override"),
        (["model"], "CFG001", 1, 1, "model", "is not an override"),
        (["task"], "CFG003", 1, 1, "task", "task has no value"),
        (["--"], "CFG001", 1, 1, "--", "is not an override"),
        (["a..b=1"], "CFG001", 1, 1, "a..b=1", "is not an override"),
        ([".".join("a" * 1000) + "=1"], "CFG001", 1, 1, ".".join("a" * 1000) + "=1", "is not an override"),
    ],
)
def test_a_fault_points_at_its_argument(tokens, code, line, column, source_line, words):
    with pytest.raises(ConfigError) as caught:
        resolved(*tokens)
    issue = caught.value.issues[0]
    assert (issue.code, issue.file, issue.line, issue.column) == (code, COMMAND_LINE, line, column)
    assert issue.source_line == source_line
    assert words in f"{issue.message} {issue.hint}"
    assert caught.value.exit_code == 2


def outcome(*tokens: str) -> str | ConfigError:
    """The digest of a configuration, or what is wrong with it."""
    try:
        return resolved(*tokens).digest
    except ConfigError as error:
        return error


@given(st.lists(st.text() | st.sampled_from(["--seed", "--trainer.tf32", "seed=1", "--", "="]), max_size=6))
def test_any_arguments_give_a_configuration_or_one_clear_error(tokens):
    found = outcome(*tokens)
    if isinstance(found, ConfigError):
        assert found.exit_code == 2
        assert all(issue.file == COMMAND_LINE for issue in found.issues)


@given(st.sampled_from(all_keys()), st.text())
def test_any_value_means_the_same_in_both_spellings(key, value):
    first, second = outcome(f"{key}={value}"), outcome(f"--{key}={value}")
    if isinstance(first, ConfigError):
        assert isinstance(second, ConfigError)
        assert [issue.message for issue in first.issues] == [issue.message for issue in second.issues]
    else:
        assert first == second
