import pytest

from neobert.config.variables import keys_using_variable


def test_a_whole_value_keeps_its_type(resolve_text):
    config = resolve_text(
        """
variables: {width: 512, rate: 3e-4, tie: true, betas: [0.8, 0.9], none: null, model: {rope: false}}
model: {hidden_size: $variables.width, tie_word_embeddings: $variables.tie, rope: $variables.model.rope}
optimizer: {lr: $variables.rate, betas: $variables.betas}
trainer: {gradient_clipping: $variables.none}
"""
    ).config
    assert (config.model.hidden_size, config.model.tie_word_embeddings, config.model.rope) == (
        512,
        True,
        False,
    )
    assert (config.optimizer.lr, config.optimizer.betas) == (3e-4, (0.8, 0.9))
    assert config.trainer.gradient_clipping is None


def test_both_spellings_stand_inside_text(resolve_text):
    text = """
variables: {a: x, n: 3, f: 1e-5, b: true}
wandb: {name: "{$variables.a}-${variables.n}-{$variables.f}-${variables.b}"}
"""
    assert resolve_text(text).config.wandb.name == "x-3-1e-05-true"


def test_a_braced_reference_that_is_the_whole_value_keeps_its_type(resolve_text):
    text = "variables: {n: 3, tie: true}\nseed: ${variables.n}\n"
    config = resolve_text(text + "model: {tie_word_embeddings: '${variables.tie}'}\n").config
    assert (config.seed, config.model.tie_word_embeddings) == (3, True)


def test_variables_may_name_each_other_in_any_order(resolve_text):
    text = """
variables:
  name: "{$variables.size.label}-{$variables.seed}"
  seed: $variables.numbers.first
  numbers: {first: 7}
  size: $variables.sizes.base
  sizes: {base: {label: base, width: 768}}
model: {hidden_size: $variables.size.width}
wandb: {name: $variables.name}
"""
    config = resolve_text(text).config
    assert (config.model.hidden_size, config.wandb.name) == (768, "base-7")
    assert config.variables["name"] == "base-7"
    assert config.variables["size"] == {"label": "base", "width": 768}


def test_an_override_of_a_variable_reaches_every_use(resolve_text):
    resolution = resolve_text(
        "variables: {width: 512}\nmodel: {hidden_size: $variables.width}\n", "--variables.width", "256"
    )
    assert resolution.config.model.hidden_size == 256
    assert resolution.origins["model.hidden_size"].line == 2
    assert resolution.origins["variables.width"].kind == "override"


def test_an_override_may_use_a_variable(resolve_text):
    assert resolve_text("variables: {w: 96}", "model.hidden_size=$variables.w").config.model.hidden_size == 96


@pytest.mark.parametrize(
    ("text", "path", "line", "column", "words"),
    [
        ("seed: $variables.x\n", "seed", 1, 7, "variable x is not defined"),
        (
            "variables: {y: 1}\nwandb:\n  name: a-${variables.x}\n",
            "wandb.name",
            3,
            9,
            "variable x is not defined",
        ),
        ("variables: {x: {y: 1}}\nseed: $variables.x.z\n", "seed", 2, 7, "variable x.z is not defined"),
        ("variables: {x: 1}\nwandb: {name: run-$variables.x}\n", "wandb.name", 2, 15, "unresolved reference"),
        (
            "variables: {x: [1]}\nwandb: {name: 'a-${variables.x}'}\n",
            "wandb.name",
            2,
            15,
            "not a single value",
        ),
        ("variables: {x: $variables.x}\n", "variables.x", 1, 16, "in a cycle: x -> x"),
        ("variables:\n  a: $variables.b\n  b: $variables.a\n", "variables.a", 2, 6, "cycle: a -> b -> a"),
        ("variables:\n  a: {b: '{$variables.a}'}\n", "variables.a.b", 2, 10, "cycle: a -> a"),
        ("variables: {a b: 1}\n", "variables.a b", 1, 13, "'a b' is not a valid name"),
        ("variables: {a.b: 1}\n", "variables.a.b", 1, 13, "'a.b' is not a valid name"),
        ("variables: [1]\n", "variables", 1, 12, "variables expects a mapping"),
    ],
)
def test_a_reference_that_fails_is_named_at_its_place(text, path, line, column, words, issues_of):
    issue = issues_of(text)[0]
    assert issue.code == ("CFG003" if path == "variables" else "CFG012")
    assert (issue.path, issue.line, issue.column) == (path, line, column)
    assert words in issue.message


def test_a_circle_is_one_problem_wherever_it_is_used(issues_of):
    circle = "variables: {c: $variables.a, b: $variables.c, a: $variables.b}\n"
    (issue,) = issues_of(circle + "seed: $variables.b\nwandb: {name: $variables.a}\n")
    assert issue.message == "variables refer to each other in a cycle: a -> b -> c -> a"
    both = issues_of("seed: $variables.x\nwandb: {name: $variables.y}\n")
    assert [issue.path for issue in both] == ["seed", "wandb.name"]


def test_a_near_name_is_suggested(issues_of):
    (issue,) = issues_of("variables: {width: 1}\nseed: $variables.widht\n")
    assert issue.hint == "did you mean width?"


def test_text_that_would_read_as_a_reference_later_is_refused(issues_of):
    (issue,) = issues_of("variables: {x: bles.x}\nwandb: {name: '$varia{$variables.x}'}\n")
    assert issue.code == "CFG012"
    assert "unresolved reference" in issue.message


@pytest.mark.parametrize(
    "item",
    ["[{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]", "'${{variables.{1}}}${{variables.{1}}}${{variables.{1}}}'"],
    ids=["lists", "text"],
)
def test_a_bomb_of_variables_is_refused_before_it_unfolds(item, issues_of):
    lines = ["variables:", "  v0: xxxxxxxx"]
    lines += [f"  v{n}: {item.format(f'$variables.v{n - 1}', f'v{n - 1}')}" for n in range(1, 40)]
    assert "expand to" in issues_of("\n".join(lines))[0].message


def test_a_long_chain_of_variables_is_refused(issues_of):
    lines = ["variables:", "  v0: x"] + [f"  v{n}: [$variables.v{n - 1}]" for n in range(1, 500)]
    found = issues_of("\n".join([lines[0], *reversed(lines[1:])]))
    assert found[0].code == "CFG012"
    assert "levels" in found[0].message


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("width", ("model.hidden_size",)),
        ("sizes", ("model.hidden_size", "wandb.name")),
        ("sizes.label", ("wandb.name",)),
        ("sizes.base", ("model.hidden_size", "wandb.name")),
        ("sizes.other", ()),
        ("beta", ("optimizer.betas.1",)),
        ("unused", ()),
        ("size", ()),
        ("", ("model.hidden_size", "optimizer.betas.1", "wandb.name")),
    ],
)
def test_the_keys_that_a_variable_goes_into(name, keys, resolve_text):
    text = """
variables:
  width: $variables.sizes.base
  sizes: {base: 768, label: "of {$variables.sizes.base}"}
  beta: 0.9
  unused: 1
model: {hidden_size: $variables.width}
optimizer: {betas: [0.8, $variables.beta]}
wandb: {name: "${variables.sizes.label} or so"}
"""
    assert keys_using_variable(name, resolve_text(text).references) == keys


DEFINE = "define it under variables: and write $variables.name"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("$HOME/x", DEFINE),
        ("${HOME}/x", DEFINE),
        ("/scratch/$USER/x", DEFINE),
        ("{$vars.root}/x", DEFINE),
        ("${oc.env:HOME}", DEFINE),
        ("$root/x", "did you mean $variables.root?"),
        ("$variables.shell", DEFINE),
    ],
)
def test_what_only_looks_like_a_variable_is_refused(value, hint, issues_of):
    text = f'variables: {{root: /r, shell: $HOME/y}}\ntrainer:\n  output_dir: "{value}"\n'
    (issue,) = issues_of(text)
    assert (issue.code, issue.path, issue.line) == ("CFG012", "trainer.output_dir", 3)
    assert "is not a variable, and '" in issue.message
    assert hint in issue.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.output_dir", "~/x"),
        ("trainer.output_dir", "/runs/5$"),
        ("trainer.output_dir", "/runs/a$b"),
        ("wandb.name", "$5 run"),
        ("dataset.text_column", "$text"),
        ("variables.price", "$HOME"),
    ],
)
def test_a_dollar_that_is_none_of_a_variable_stays(key, value, resolve_text):
    section, _, name = key.partition(".")
    config = resolve_text(f"{section}: {{{name}: '{value}'}}\n").config
    found = getattr(config, section)
    assert (found[name] if section == "variables" else getattr(found, name)) == value


def test_an_argument_that_the_shell_did_not_expand_is_refused(issues_of):
    (issue,) = issues_of("seed: 1\n", "trainer.output_dir=$HOME/x")
    assert (issue.code, issue.file) == ("CFG012", "<command line>")


def test_a_lookalike_is_told_once_and_not_as_a_wrong_type_too(issues_of):
    text = "trainer: {max_steps: $STEPS, save_steps: $STEPS}\n"
    (issue,) = issues_of(text)
    assert (issue.code, issue.path) == ("CFG012", "trainer.max_steps")


def test_the_reason_of_a_waiver_is_prose(resolve_text):
    waiver = "{code: BUD002, reason: $variable costs are agreed, expires: 2026-12-31}"
    (found,) = resolve_text(f"waivers: [{waiver}]\n").config.waivers
    assert found.reason.startswith("$variable")
