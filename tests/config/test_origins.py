from pathlib import Path

from neobert.config import Origin, all_keys, load_document, parse_overrides, resolve

BASE = "model:\n  rope: true\ntrainer:\n  max_steps: 10\n  save_steps: 5\noptimizer:\n  betas: [0.8, 0.9]\n"
RUN = "trainer:\n  max_steps: 20\nvariables:\n  a: {b: 1}\n"


def layers(tmp_path: Path):
    base, run = tmp_path / "base.yaml", tmp_path / "run.yaml"
    base.write_text(BASE)
    run.write_text(RUN)
    return [load_document(base, "profile"), load_document(run)], str(base), str(run)


def test_every_leaf_has_an_origin(tmp_path):
    documents, _, _ = layers(tmp_path)
    for resolution in (resolve([]), resolve(documents)):
        assert set(all_keys()) <= set(resolution.origins)
    assert set(resolve([]).origins.values()) == {Origin("default")}


def test_the_layer_that_won_is_named(tmp_path):
    documents, base, run = layers(tmp_path)
    origins = resolve(documents, parse_overrides(["seed=3", "--trainer.tf32", "false"])).origins
    assert origins["model.rope"] == Origin("profile", base, 2, 9)
    assert origins["trainer.save_steps"] == Origin("profile", base, 5, 15)
    assert origins["trainer.max_steps"] == Origin("file", run, 2, 14)
    assert origins["optimizer.betas"] == Origin("profile", base, 7, 10)
    assert origins["optimizer.betas.1"] == Origin("profile", base, 7, 16)
    assert origins["variables.a.b"] == Origin("file", run, 4, 10)
    assert origins["seed"] == Origin("override", "<command line>", 1, 6)
    assert origins["trainer.tf32"] == Origin("override", "<command line>", 2, 16)
    assert origins["trainer.eval_steps"] == Origin("default")


def test_a_section_is_placed_at_its_key_in_the_last_file_that_has_it(tmp_path):
    documents, base, run = layers(tmp_path)
    origins = resolve(documents, parse_overrides(["trainer.tf32=false", "guard.max_lost_minutes=30"])).origins
    assert origins["model"] == Origin("profile", base, 1, 1)
    assert origins["trainer"] == Origin("file", run, 1, 1)
    assert origins["guard"] == Origin("override", "<command line>", 2, 1)


def test_a_later_file_wins_key_by_key_and_lists_as_a_whole(tmp_path):
    documents, _, _ = layers(tmp_path)
    over = tmp_path / "over.yaml"
    over.write_text("optimizer: {betas: [0.1, 0.2]}\nvariables: {a: {c: 2}}\n")
    config = resolve([*documents, load_document(over)]).config
    assert (config.trainer.max_steps, config.trainer.save_steps) == (20, 5)
    assert config.optimizer.betas == (0.1, 0.2)
    assert config.variables == {"a": {"b": 1, "c": 2}}
