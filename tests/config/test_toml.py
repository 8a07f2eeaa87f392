import pytest

from neobert.config import load_document, resolve

TOML = """\
seed = 3

[variables]
width = 512

[model]  # the encoder
hidden_size = "$variables.width"
norm_eps = 1e-5

[optimizer]
betas = [
  0.9,   # first
  0.95,
]
lr = 6e-4

[wandb]
name = '''
[model]
hidden_size = 5
'''
entity = "a # b"

[trainer]
"max_steps" = 5

[[waivers]]
code = "BUD001"
reason = "agreed in the review"
expires = 2026-12-31

[[waivers]]
code = "BUD002"
reason = "agreed in the review"
expires = "2027-01-01"
"""
YAML = """\
seed: 3
variables: {width: 512}
model: {hidden_size: $variables.width, norm_eps: 1e-5}
optimizer: {betas: [0.9, 0.95], lr: 6e-4}
wandb:
  name: |
    [model]
    hidden_size = 5
  entity: "a # b"
trainer: {max_steps: 5}
waivers:
  - {code: BUD001, reason: agreed in the review, expires: 2026-12-31}
  - {code: BUD002, reason: agreed in the review, expires: 2027-01-01}
"""
PLACES = {
    "seed": (1, 8),
    "variables.width": (4, 9),
    "model": (6, 2),
    "model.hidden_size": (7, 15),
    "optimizer.betas": (11, 9),
    "optimizer.betas.1": (11, 9),
    "optimizer.lr": (15, 6),
    "wandb.name": (18, 8),
    "wandb.entity": (22, 10),
    "trainer.max_steps": (25, 15),
    "waivers.0.code": (28, 8),
    "waivers.1.expires": (35, 11),
}


def test_toml_and_yaml_give_equal_configurations(write):
    toml = resolve([load_document(write(TOML, "run.toml"))])
    yaml = resolve([load_document(write(YAML))])
    assert toml.config == yaml.config
    assert toml.digest == yaml.digest


@pytest.mark.parametrize("line_ending", ["\n", "\r\n"])
def test_places_are_found_in_the_source(line_ending, resolve_text):
    origins = resolve_text(TOML.replace("\n", line_ending), name="run.toml").origins
    assert {path: (origins[path].line, origins[path].column) for path in PLACES} == PLACES


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        ("seed = 1\nseed = 2\n", "CFG002", 2, "set twice"),
        ("seed =\n", "CFG011", 1, "Invalid value"),
        ("seed = 1\n[trainer\n", "CFG011", 2, "Expected"),
        ("[trainer]\nmax_step = 1\n", "CFG001", 2, "is not a key"),
        ("[optimizer]\nlr = nan\n", "CFG003", 2, "not a finite number"),
        ("trainer.max_steps = 'often'\n", "CFG003", 1, "an integer above 0"),
        ("trainer.max_steps = 9223372036854775808\n", "CFG003", 1, "64 bits"),
        ("seed = " + "9" * 5000, "CFG011", 0, "too large"),
        ("variables = " + "[" * 5000, "CFG011", 0, "nested too deeply"),
        ("variables" + ".a" * 100 + " = 1", "CFG003", 1, "deeper than"),
        ("variables" + ".a" * 2000 + " = 1", "CFG011", 0, "nested too deeply"),
    ],
)
def test_faults_have_their_line(text, code, line, words, issues_of):
    issue = issues_of(text, name="run.toml")[0]
    assert (issue.code, issue.line) == (code, line)
    assert words in issue.message


def test_an_empty_toml_file_is_refused_like_an_empty_yaml_file(issues_of):
    (issue,) = issues_of("# nothing\n", name="run.toml")
    assert issue.code == "CFG011"
    assert "is empty" in issue.message
