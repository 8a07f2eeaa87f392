import pytest

from neobert.config import ConfigError, ConfigIssue
from neobert.config.errors import MAX_SHOWN

ONE_ISSUE = [
    # text, code, path, line, column, in the message, in the hint
    ("trainer:\n  max_step: 5\n", "CFG001", "trainer.max_step", 2, 3, "is not a key", "trainer.max_steps?"),
    ("model:\n  save_steps: 5\n", "CFG001", "model.save_steps", 2, 3, "is not a key", "section trainer"),
    ("optimizer:\n  rl: 1e-3\n", "CFG001", "optimizer.rl", 2, 3, "is not a key", "mean optimizer.lr?"),
    ("rl: dpo\n", "CFG007", "rl", 1, 1, "is not a key here", "TRL"),
    ("max_steps: 5\n", "CFG001", "max_steps", 1, 1, "is not a key", "write trainer.max_steps"),
    ("trianer:\n  max_steps: 5\n", "CFG001", "trianer", 1, 1, "is not a key", "did you mean trainer?"),
    ("qqqqq: 5\n", "CFG001", "qqqqq", 1, 1, "is not a key", "explain NAME` searches the keys"),
    ("qqqqq: {a: 5}\n", "CFG001", "qqqqq", 1, 1, "is not a key", "remove the section qqqqq"),
    ("exp: {trainer: {max_steps: 5}}\n", "CFG001", "exp", 1, 1, "is not a key", "of exp to the top level"),
    ("trainer: {'': 5}\n", "CFG001", "trainer.", 1, 11, 'trainer."" is not a key', ""),
    ("seed: 1\nseed: 2\n", "CFG002", "seed", 2, 1, "set twice; first in line 1", "keep one"),
    ("trainer:\n  max_steps: often\n", "CFG003", "trainer.max_steps", 2, 14, "an integer above 0", ""),
    ("trainer:\n  max_steps: 5.0\n", "CFG003", "trainer.max_steps", 2, 14, "got 5.0", "write 5"),
    ("trainer:\n  max_steps: '5'\n", "CFG003", "trainer.max_steps", 2, 14, 'the text "5"', "the quotes: 5"),
    ("trainer:\n  max_steps: 1_000\n", "CFG003", "trainer.max_steps", 2, 14, "1_000", "separators: 1000"),
    ("optimizer:\n  lr: 0,001\n", "CFG003", "optimizer.lr", 2, 7, '"0,001"', "not a comma: 0.001"),
    ("trainer:\n  max_steps: 1,000\n", "CFG003", "trainer.max_steps", 2, 14, "1,000", "separators: 1000"),
    ("optimizer: {lr: 0,001}\n", "CFG003", "optimizer", 1, 19, "not text", "with a point, not a comma"),
    ("optimizer:\n  lr:0.001\n", "CFG003", "optimizer", 2, 3, "", "after the colon: lr: 0.001"),
    ("optimizer: {lr:0.001}\n", "CFG001", "optimizer.lr:0.001", 1, 13, "", "after the colon: lr: 0.001"),
    ("optimizer.lr: 1\n", "CFG001", "optimizer.lr", 1, 1, "", "write lr in the section optimizer"),
    ("seed: None\n", "CFG003", "seed", 1, 7, "", "not None: remove the line to use"),
    ("trainer: {max_epochs: None}\n", "CFG003", "trainer.max_epochs", 1, 23, "", "not None: write null"),
    ("trainer: &t {}\nmodel: {<<: *t}\n", "CFG001", "model.<<", 2, 9, "", "YAML 1.2 has no merge key"),
    (
        "trainer: {metric_for_best_model: f1}",
        "CFG003",
        "trainer.metric_for_best_model",
        1,
        34,
        "",
        "write eval/f1",
    ),
    ("trainer:\n  max_steps: 0\n", "CFG003", "trainer.max_steps", 2, 14, "an integer above 0, got 0", ""),
    ("trainer:\n  max_steps: true\n", "CFG003", "trainer.max_steps", 2, 14, "got true", ""),
    ("trainer:\n  max_steps: 9223372036854775808\n", "CFG003", "trainer.max_steps", 2, 14, "64 bits", ""),
    (
        "trainer:\n  max_steps:\n",
        "CFG003",
        "trainer.max_steps",
        2,
        13,
        "no value (null)",
        "the value of the profile, or the default (1000)",
    ),
    (
        "waivers: [{code: X, reason: Long enough, expires: null}]\n",
        "CFG003",
        "waivers.0.expires",
        1,
        51,
        "no value (null)",
        "has no default",
    ),
    ("trainer:\n", "CFG003", "trainer", 1, 9, "a mapping of keys, got no value", "write a key under trainer"),
    ("trainer: [1]\n", "CFG003", "trainer", 1, 10, "got a list of 1", ""),
    ("optimizer:\n  lr: '6e-4'\n", "CFG003", "optimizer.lr", 2, 7, "a number above 0", "the quotes: 6e-4"),
    ("optimizer:\n  lr: .nan\n", "CFG003", "optimizer.lr", 2, 7, "nan is not a finite number", ""),
    ("optimizer:\n  betas: [0.9]\n", "CFG003", "optimizer.betas", 2, 10, "a list of 2", ""),
    ("optimizer:\n  betas: [0.9, 1]\n", "CFG003", "optimizer.betas.1", 2, 16, "below 1, got 1", ""),
    ("trackers: tensorboard\n", "CFG003", "trackers", 1, 11, "", "write a list: [tensorboard]"),
    ("optimizer:\n  betas: 0.9, 0.95\n", "CFG003", "optimizer.betas", 2, 10, "", "write a list: [0.9, 0.95]"),
    (
        "trainer: {resume_from_checkpoint: false}\n",
        "CFG003",
        "trainer.resume_from_checkpoint",
        1,
        35,
        "",
        "write never",
    ),
    ("scheduler: {name: wsd}\n", "CFG003", "scheduler.name", 1, 19, "", "scheduler.decay_percent"),
    ("optimizer: {name: adamw_8bit}\n", "CFG003", "optimizer.name", 1, 19, "", "write adamw"),
    ("datacollator:\n  mask_all: no\n", "CFG003", "datacollator.mask_all", 2, 13, '"no"', "write false"),
    ("datacollator:\n  mask_all: 'true'\n", "CFG003", "datacollator.mask_all", 2, 13, "", "the quotes: true"),
    ("datacollator:\n  mask_all: 1\n", "CFG003", "datacollator.mask_all", 2, 13, "got 1", "write true"),
    ("profile: [cpu]\n", "CFG003", "profile", 1, 10, "got a list of 1", "write cpu, without brackets"),
    ("wandb:\n  name: 12\n", "CFG003", "wandb.name", 2, 9, "expects text, or null", 'in quotes: "12"'),
    ("scheduler:\n  name: cosin\n", "CFG003", "scheduler.name", 2, 9, "one of cosine, linear", "cosine?"),
    (
        "trainer:\n  mixed_precision: fp16\n",
        "CFG003",
        "trainer.mixed_precision",
        2,
        20,
        "",
        "needs loss scaling",
    ),
    ("task: mlm\n", "CFG003", "task", 1, 7, "one of pretrain", "write pretrain"),
    ("waivers: {}\n", "CFG003", "waivers", 1, 10, "a list, each item a mapping of code", ""),
    ("dataset:\n  name: {$variables.x}\n", "CFG003", "dataset.name", 2, 9, "got a mapping", ""),
    ("trainer:\n  save_every: 0\n", "CFG007", "trainer.save_every", 2, 3, "", "trainer.save_steps"),
    (
        "transformer_engine: {recipe: fp8_delayed}\n",
        "CFG003",
        "transformer_engine.recipe",
        1,
        30,
        "",
        "fp8_current",
    ),
    ("quartet2: {require_compile: true}\n", "CFG007", "quartet2.require_compile", 1, 12, "", "PRE007"),
    (
        "model:\n  seed: $variables.s\n",
        "CFG012",
        "model.seed",
        2,
        9,
        "variable s is not defined",
        "under variables:",
    ),
]


@pytest.mark.parametrize(
    ("text", "code", "path", "line", "column", "message", "hint"), ONE_ISSUE, ids=[c[0] for c in ONE_ISSUE]
)
def test_each_fault_has_its_code_place_and_way_out(text, code, path, line, column, message, hint, issues_of):
    issue = issues_of(text)[0]
    assert (issue.code, issue.path, issue.line, issue.column) == (code, path, line, column)
    assert message in issue.message
    assert hint in issue.hint
    assert issue.source_line == text.splitlines()[line - 1]


def waiver(**changes: object) -> str:
    values = {"code": "BUD001", "reason": "agreed in the review", "expires": "2026-12-31"} | changes
    return "waivers:\n  - {" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}\n"


@pytest.mark.parametrize(
    "day", ["20261231", "2026-02-30", "2026-12-31T00:00:00", "1798675200", "tomorrow", "31.12."]
)
def test_a_day_is_written_in_one_way(day, issues_of):
    (issue,) = issues_of(waiver(expires=day))
    assert (issue.code, issue.path, issue.line) == ("CFG003", "waivers.0.expires", 2)
    assert "a date such as 2026-12-31" in issue.message


def test_a_waiver_says_why(issues_of):
    (issue,) = issues_of(waiver(reason="why not"))
    assert "text of at least 10 characters" in issue.message
    missing = issues_of("waivers:\n  - {code: X}\n")
    assert [issue.message for issue in missing] == [
        "waivers.0 has no reason, which is required",
        "waivers.0 has no expires, which is required",
    ]
    assert {(issue.line, issue.column) for issue in missing} == {(2, 5)}


def test_all_problems_are_named_at_once_in_the_order_of_the_file(issues_of):
    text = "seed: x\nmodel:\n  dim: 128\n  rope: .nan\ntrainer:\n  tf32: on\n  tf32: true\n  save_step: 1\n"
    found = issues_of(text, "optimizer.lr=fast")
    assert [(issue.code, issue.line) for issue in found] == [
        ("CFG003", 1),
        ("CFG007", 3),
        ("CFG003", 4),
        ("CFG003", 6),
        ("CFG002", 7),
        ("CFG001", 8),
        ("CFG003", 1),
    ]
    assert found[-1].file == "<command line>"


def test_a_misspelt_section_names_what_is_misplaced_in_it(issues_of):
    found = issues_of("train:\n  max_steps: 5\n  lr: 1e-3\n  seq_len: 128\n")
    assert [(issue.code, issue.path) for issue in found] == [
        ("CFG001", "train"),
        ("CFG001", "train.lr"),
        ("CFG007", "train.seq_len"),
    ]


def test_exit_codes_tell_a_failed_check_from_a_usage_error(resolve_text):
    for overrides, exit_code in (((), 1), (("seed=x",), 2)):
        with pytest.raises(ConfigError) as caught:
            resolve_text("trainer:\n  max_step: 5\n", *overrides)
        assert caught.value.exit_code == exit_code


def test_an_error_reads_like_a_compilers(resolve_text):
    with pytest.raises(ConfigError) as caught:
        resolve_text("trainer:\n\n  torch_compile:   no   # not yet\n")
    head, *rest = str(caught.value).split("\n")
    assert head.endswith(
        'run.yaml:3:20: CFG003 trainer.torch_compile expects true or false, got the text "no"'
    )
    assert rest == [
        "  3 |   torch_compile:   no   # not yet",
        "    |                    ^",
        "  = hint: YAML 1.2 reads no as text: write false",
    ]


def issue(line: int = 1, column: int = 1, source_line: str = "") -> ConfigIssue:
    return ConfigIssue("CFG001", "a", f"message {line}", "", "f.yaml", line, column, source_line)


def test_the_caret_stands_under_tabs_and_wide_characters():
    assert str(issue(column=4, source_line="a:\t5")).endswith("\n    |   \t^")
    assert str(issue(column=3, source_line="日本x")).endswith("\n    |     ^")


def test_a_long_line_is_cut_around_the_column():
    source = "x" * 5000 + "HERE" + "y" * 5000
    _, shown, caret = str(issue(column=5001, source_line=source)).split("\n")
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("HERE")


def test_control_characters_never_reach_the_terminal(issues_of):
    found = issues_of('"\\e[31mred": 1\nwandb: {name: {"\\a": 1}}\n')
    assert "\x1b" not in "".join(map(str, found))
    assert "\x1b" not in str(issue(source_line="\x1b[31m"))


def test_a_long_list_is_cut_with_a_count():
    error = ConfigError([issue(line) for line in range(1, MAX_SHOWN + 8)])
    assert f"message {MAX_SHOWN}\n" in str(error) + "\n"
    assert f"message {MAX_SHOWN + 1}" not in str(error)
    assert str(error).endswith("... and 7 more")
    assert len(error.issues) == MAX_SHOWN + 7
    assert error.message == f"message 1 (and {MAX_SHOWN + 6} more)"


def test_the_same_problem_is_said_once():
    assert len(ConfigError([issue(), issue()]).issues) == 1


@pytest.mark.parametrize(
    ("key", "most", "too_much", "reason"),
    [
        ("guard.max_lost_minutes", "240", "240.1", "requires a waiver of CKP002"),
        ("guard.receipt_ttl_hours", "168", "1e300", "at most a week"),
        ("model.max_position_embeddings", "16777216", "2000000000", "Maximum sequence length"),
        ("model.num_hidden_layers", "10000", "9223372036854775807", "Number of encoder blocks"),
        ("watchdog.step_limit_s", "604800", "604801", "at most a week"),
        ("watchdog.grace_s", "3600", "3601", "Grace period"),
        ("watchdog.max_restarts", "100", "101", "restarts from the same checkpoint"),
        ("watchdog.heartbeat_interval_s", "600", "601", "hangs are not detected sooner"),
    ],
)
def test_values_above_the_largest_are_refused_with_the_reason(
    key, most, too_much, reason, issues_of, resolve_text
):
    assert resolve_text("seed: 1\n", f"{key}={most}").origins[key].kind == "override"
    (issue,) = issues_of("seed: 1\n", f"{key}={too_much}")
    assert (issue.code, issue.path) == ("CFG003", key)
    assert f"of at most {most}" in issue.message
    assert reason in issue.hint
