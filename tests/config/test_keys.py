import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from neobert.config import RunConfig, all_keys, from_dict, sections, to_dict
from neobert.config.hydrate import json_schema
from neobert.config.key_suggestions import describe_key
from neobert.errors import ProjectError

ROOT = Path(__file__).parents[2]


def test_every_key_is_described():
    assert len(all_keys()) == len(set(all_keys())) > 90
    for key in [*all_keys(), *sections()]:
        info = describe_key(key)
        assert info.path == key
        assert info.description.endswith(".")
        assert info.type


@pytest.mark.parametrize(
    ("key", "kind", "default", "choices"),
    [
        ("trainer.max_steps", "an integer above 0", 1000, ()),
        ("trainer.mixed_precision", "one of bf16, fp32, no", "bf16", ("bf16", "fp32", "no")),
        ("trainer.gradient_clipping", "a number above 0, or null", 1.0, ()),
        ("optimizer.betas", "a list of 2, each a number of at least 0 and below 1", (0.9, 0.999), ()),
        ("trainer.tf32", "true or false", True, ()),
        ("wandb.project", "text", "neobert", ()),
        ("variables", "a mapping", {}, ()),
        ("waivers", "a list, each item a mapping of code, reason, expires", (), ()),
        ("trainer", "a mapping of keys", RunConfig().trainer, ()),
    ],
)
def test_a_key_is_described_in_words(key, kind, default, choices):
    info = describe_key(key)
    assert (info.type, info.default, info.choices) == (kind, default, choices)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("save_steps", "did you mean trainer.save_steps?"),
        ("trainer.save_every", "write trainer.save_steps, in optimizer steps"),
        ("", "`neobert-launch schema` lists the keys"),
        ("variables.x", "`neobert-launch schema` lists the keys"),
    ],
)
def test_a_key_that_does_not_exist_is_answered_with_the_one_that_was_meant(key, hint):
    with pytest.raises(ProjectError) as caught:
        describe_key(key)
    assert (caught.value.code, caught.value.hint, caught.value.exit_code) == ("CFG001", hint, 2)


def test_the_json_schema_accepts_what_the_loader_accepts():
    schema = json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate(to_dict(from_dict({})))
    for path in sorted((ROOT / "profiles").glob("*/*.yaml")):
        validator.validate(yaml.safe_load(path.read_text().replace("e-", ".0e-")))


@pytest.mark.parametrize(
    "values", [{"trainer": {"max_step": 1}}, {"seed": "x"}, {"trainer": {"max_steps": 0}}, {"task": "mlm"}]
)
def test_the_json_schema_refuses_what_the_loader_refuses(values):
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(values)


def test_the_json_schema_describes_every_key():
    schema = json_schema()
    assert schema["title"]
    assert schema["properties"]["trainer"]
    trainer = schema["$defs"]["TrainerConfig"]["properties"]
    assert trainer["max_steps"]["description"] == "Number of optimizer steps."
    assert {"about", "extends"} <= set(schema["properties"])
    json.dumps(schema)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.child
def test_importing_the_configuration_loads_no_pydantic_yaml_or_torch():
    assert not loaded_by("import neobert.config") & {
        "pydantic",
        "yaml",
        "torch",
        "numpy",
        "difflib",
        "tomllib",
    }
