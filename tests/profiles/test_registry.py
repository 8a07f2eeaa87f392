from collections.abc import Callable
from pathlib import Path

import pytest

from neobert.config import ConfigError, Origin
from neobert.errors import ProjectError
from profiles.inherit import FOLDERS_ENV
from profiles.registry import list_profiles, load_profile, resolve_run
from tests.refusals import refusal_of

Write = Callable[[str, str], Path]

MINE = (
    "about: {name: mine, kind: smoke, intent: To try things.}\nextends: cpu-demo\ntrainer: {max_steps: 7}\n"
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into a folder that profiles are searched in."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    monkeypatch.setenv(FOLDERS_ENV, str(folder))

    def write(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a run file."""

    def run_file(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return run_file


def test_a_profile_of_ones_own_is_found_and_builds_on_a_shipped_one(write):
    write("mine.yaml", MINE)
    assert "mine" in list_profiles()
    profile = load_profile("mine")
    assert (profile.config.trainer.max_steps, profile.config.model.hidden_size) == (7, 192)
    assert [Path(file).stem for file in profile.files] == ["mine", "cpu-demo"]
    assert (profile.is_pinned, profile.is_locked) == (False, False)
    assert profile.requires.device == "cuda"  # `about` is each profile's own, never inherited


def test_a_name_that_is_shipped_cannot_be_taken(write):
    write("a100-prod.yaml", MINE.replace("mine", "a100-prod"))
    refusal_of(load_profile, "CFG005", "a100-prod is already used by", "a100-prod")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a100prod", "did you mean a100-prod?"),
        ("cpu_demo", "did you mean cpu-demo?"),
        ("tpu", "available profiles: 2xa100-prod, 8xh200-prod, a100-prod, causal-demo"),
        ("", "available profiles:"),
        ("../production/a100-prod", "available profiles:"),
    ],
)
def test_an_unknown_profile_is_answered_with_the_one_that_was_meant(name, hint):
    with pytest.raises(ProjectError) as caught:
        resolve_run(name)
    assert hint in caught.value.hint
    assert (caught.value.code, caught.value.exit_code) == ("CFG005", 2)


def test_a_run_file_in_place_of_a_profile_is_told_its_option(run_file):
    path = run_file("profile: cpu-demo\n")
    with pytest.raises(ProjectError) as caught:
        resolve_run(str(path))
    assert caught.value.hint == f"{path} is a file: use --config {path}"


def test_a_search_path_that_leads_nowhere_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", f"{tmp_path}:{tmp_path / 'gone'}")
    with pytest.raises(ProjectError) as caught:
        resolve_run("quite-my-own")
    assert f"missing folders in NEOBERT_PROFILE_PATH: {tmp_path / 'gone'}" in caught.value.hint


def test_an_unknown_profile_in_a_run_file_is_placed(run_file):
    path = run_file("seed: 1\nprofile: a100-prd\n")
    with pytest.raises(ProjectError) as caught:
        resolve_run(None, [path])
    assert caught.value.place == f"{path}:2:10"
    assert caught.value.hint == "did you mean a100-prod?"


def test_a_base_that_does_not_exist_is_placed(write):
    path = write("mine.yaml", MINE.replace("cpu-demo", "cpu-dmo"))
    with pytest.raises(ProjectError) as caught:
        load_profile("mine")
    assert caught.value.place == f"{path}:2:10"
    assert caught.value.hint == "did you mean cpu-demo?"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("trainer: {max_steps: 7}\n", ProjectError, "add about: {name: mine, kind: development"),
        (
            MINE.replace("name: mine", "name: yours"),
            ProjectError,
            "file is named mine, but about.name is yours",
        ),
        (MINE.replace("cpu-demo", "[cpu-demo]"), ProjectError, "extends must be the name of one profile"),
        (MINE.replace("kind: smoke", "kind: prod"), ConfigError, "one of production, development, smoke"),
        (MINE.replace("kind: smoke", "knd: smoke"), ConfigError, "did you mean kind?"),
        (MINE.replace("To try things.", "x, requires: {gpus: 2}"), ConfigError, "did you mean gpu?"),
        (MINE.replace("To try things.", "x, expects: {mfu: 35}"), ConfigError, "of at most 1, got 35"),
        (MINE.replace("max_steps", "max_step"), ConfigError, "did you mean trainer.max_steps?"),
        (MINE + "profile: mine\nprofile: mine\n", ConfigError, "set twice"),
    ],
)
def test_a_profile_with_a_fault_is_refused(text, error, words, write):
    write("mine.yaml", text)
    with pytest.raises(error) as caught:
        load_profile("mine")
    assert words in str(caught.value)


def test_a_fault_in_about_has_its_place(write):
    path = write("mine.yaml", "about:\n  name: mine\n  kind: prod\n  intent: x\n")
    with pytest.raises(ConfigError) as caught:
        load_profile("mine")
    (issue,) = caught.value.issues
    assert (issue.file, issue.line, issue.column, issue.path) == (str(path), 3, 9, "about.kind")


def test_a_run_file_and_the_option_name_the_same_run(run_file):
    by_file = resolve_run(None, [run_file("profile: cpu-demo\n")])
    by_option = resolve_run("cpu-demo")
    by_both = resolve_run("cpu-demo", [run_file("profile: cpu-demo\n")])
    assert by_file.digest == by_option.digest == by_both.digest
    assert by_file.config == by_option.config
    assert by_option.profile == load_profile("cpu-demo")


def test_a_run_file_and_the_option_must_agree(run_file):
    path = run_file("profile: cpu-demo\n")
    error = refusal_of(
        resolve_run, "CFG005", "'cpu-demo', but --profile sets 'a100-prod'", "a100-prod", [path]
    )
    assert error.place == f"{path}:1:10"
    assert error.exit_code == 2


def test_a_run_file_that_names_no_profile_takes_the_options(run_file):
    run = resolve_run("cpu-demo", [run_file("profile: null\nseed: 3\n")])
    assert (run.config.profile, run.config.seed) == ("cpu-demo", 3)
    assert resolve_run(None, [run_file("profile: null\n")]).profile is None


def test_two_run_files_must_agree_too(run_file):
    files = [run_file("profile: cpu-demo\n", "a.yaml"), run_file("profile: a100-prod\n", "b.yaml")]
    refusal_of(resolve_run, "CFG005", "a.yaml:1:10 sets 'cpu-demo'", None, files)


def test_the_option_is_no_override():
    with pytest.raises(ProjectError) as caught:
        resolve_run(None, [], ["--profile=cpu-demo"])
    assert caught.value.hint == "write --profile cpu-demo"
    assert caught.value.exit_code == 2


def test_later_files_win_and_overrides_beat_them(run_file):
    files = [
        run_file("profile: cpu-demo\ntrainer: {max_steps: 1, save_steps: 1}\n", "a.yaml"),
        run_file("[trainer]\nmax_steps = 2\neval_steps = 2\n", "b.toml"),
    ]
    run = resolve_run(None, files, ["--trainer.eval_steps", "3"])
    trainer = run.config.trainer
    assert (trainer.max_steps, trainer.save_steps, trainer.eval_steps) == (2, 1, 3)
    assert run.source_file == str(files[1])
    assert [override.path for override in run.overrides] == ["trainer.eval_steps"]
    assert run.profile is not None
    assert run.profile.config.trainer.max_steps == 700


def test_the_origin_of_a_value_is_the_layer_that_set_it(run_file):
    path = run_file("profile: a100-prod\ntrainer:\n  max_steps: 10\n")
    run = resolve_run(None, [path], ["seed=2"])
    assert run.origin("trainer.max_steps") == Origin("file", str(path), 3, 14)
    assert run.origin("seed") == Origin("override", "<command line>", 1, 6)
    assert run.origin("trainer.tf32") == Origin("default")
    assert run.origin("optimizer.lr").file.endswith("_neobert.yaml")
    assert run.origin("trainer.save_steps").file.endswith("a100-prod.yaml")
    assert run.origin("profile") == Origin("file", str(path), 1, 10)


def test_a_finding_points_at_the_value_then_its_section_then_the_file(run_file):
    path = run_file("seed: 1\ntrainer:\n  max_steps: 10\n")
    run = resolve_run(None, [path])
    assert run.place("trainer.max_steps") == Origin("file", str(path), 3, 14)
    assert run.place("trainer.save_steps") == Origin("file", str(path), 2, 1)
    assert run.place("optimizer.lr") == Origin("file", str(path), 1, 0)
    implied = resolve_run(None, [run_file("task: classification\ndataset:\n  path: a.csv\n")])
    assert implied.place("dataset").line == 2, "dataset.long_documents is implied"
    assert resolve_run(None).place("optimizer.lr") == Origin("default")


def test_a_profile_file_resolves_to_the_profile(write):
    path = write("mine.yaml", MINE)
    run = resolve_run(None, [path], ["seed=4"])
    assert run.profile == load_profile("mine")
    assert (run.config.trainer.max_steps, run.config.seed) == (7, 4)
    assert run.source_file == str(path)
    error = refusal_of(resolve_run, "CFG005", "cannot be combined", "cpu-demo", [path])
    assert error.hint == "write profile: mine in a run file"


def test_a_base_cannot_be_run():
    refusal_of(resolve_run, "CFG005", "_neobert is a base for other profiles and cannot be run", "_neobert")


def test_a_run_file_may_not_smuggle_profile_keys(run_file):
    path = run_file("profile: cpu-demo\nabout: {name: x}\n")
    with pytest.raises(ProjectError, match=r"a profile|about"):
        resolve_run(None, [path])
