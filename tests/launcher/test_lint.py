"""`lint`: which files, which rules, in which order, and fixes that change nothing else."""

import json
import os
import re
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.lint.discovery import discover, reason_to_skip_file_in_folder
from launcher.lint.fixes import fix_file
from launcher.lint.line_edits import Edit, apply_edit
from neobert.config import all_keys
from neobert.config.migrated_keys import rename_table
from profiles import registry
from profiles.inherit import load_layers

PROD = "profile: a100-prod\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_files_are_taken_once(tmp_path):
    other = write(tmp_path / "workflow.yaml", "name: ci\n")
    run = write(tmp_path / "run.yaml", PROD)
    found = discover([run, tmp_path, run])
    assert (found.files, [left.path for left in found.left_out]) == ((run,), [other])


@pytest.mark.parametrize(
    ("name", "text", "is_judged"),
    [
        ("a.yaml", "trianer: {max_steps: 5}\n", True),
        ("a.yaml", "learning_rate: 1e-4\nmax_steps: 9\n", True),
        ("a.yaml", "base: x\ntrust: true\nlora: 1\nlearning_rate: 1\nwarmup_steps: 1\nbf16: true\n", True),
        ("a.yaml", "resume: true\n", True),
        ("a.yaml", "", True),
        ("a.json", "{", True),
        ("a.yaml", "a: [\n", True),
        ("a.toml", "a = [\n", True),
        ("objects.yaml", "kind: Service\n---\nkind: Deployment\n", False),
        ("missing.yaml", None, True),
        (".pre-commit-config.yaml", "repos:\n  - repo: local\n    hooks: []\n", False),
        ("ci.yml", "name: ci\non: push\njobs:\n  train: {steps: []}\n", False),
        ("playbook.yaml", "---\n# all hosts\n- hosts: all\n", False),
        ("pyproject.toml", '[project]\nname = "x"\n[tool.isort]\nprofile = "black"\nmodel = 1\n', False),
        ("tsconfig.json", '{"compilerOptions": {}, "include": []}', False),
    ],
)
def test_a_file_named_by_a_hook_is_judged_unless_it_is_clearly_another_tool_s(
    name, text, is_judged, tmp_path, monkeypatch
):
    path = tmp_path / name if text is None else write(tmp_path / name, text)
    assert discover([path]).files == (path,), "named by hand"
    monkeypatch.setenv("PRE_COMMIT", "1")
    assert (discover([path]).files == (path,)) is is_judged


def test_a_hook_that_names_only_files_of_other_tools_passes(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PRE_COMMIT", "1")
    workflow = write(tmp_path / "ci.yaml", "name: ci\non: push\njobs: {}\n")
    bad = write(tmp_path / "bad.yaml", PROD + "trainer: {save_steps: 0}\n")
    passed = command("lint", workflow)
    assert (passed.code, "nothing to lint" in passed.err) == (0, True)
    assert f"left out {workflow}" in passed.err
    assert command("lint", workflow, bad).code == 1


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is after some runs: a good run file beside much that is none."""
    root = tmp_path_factory.mktemp("project")
    words = {f"{before}{after}": 1989 + after for after in range(3000) for before in ("##hidden_size", "wd")}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {}, "model": {"vocab": words}}
    for large, folder in enumerate(("tok", "runs/demo/checkpoints/20", "backup/20")):
        write(root / folder / "tokenizer.json", json.dumps(tokenizer, indent=[None, 1, 4][large]))
    write(root / "big" / "tokenizer.json", json.dumps(tokenizer | {"more": ["x" * 80] * 14_000}))
    write(root / "records.json", '{"model": {}, "profile": 1}\n{"model": {}, "profile": 2}\n')
    write(root / "run.yaml", "profile: cpu-demo\n")
    write(root / "runs" / "demo" / "config.yaml", "trainer: {max_step: 5}\n")
    write(root / "runs" / "demo" / "resolved.json", '{"profile": "cpu-demo"}')
    write(root / "runs" / "demo" / "manifest.json", "{}")
    write(root / "backup" / "20" / "trainer_state" / "resolved.json", "{}")
    write(root / "backup" / "20" / "config.json", '{"model": {}}')
    write(root / "venv" / "pyvenv.cfg", "")
    write(root / "venv" / "lib" / "conf.yaml", "model: {nothing: 1}\n")
    tools = '[tool.x]\nprofile = "black"\nmodel = 1\n[tool.y.trainer]\ndataset = 1\n'
    write(root / "pyproject.toml", f'[project]\nname = "x"\n{tools}')
    return root


def test_a_folder_with_runs_and_tokenizers_passes(command, project):
    answer = command("lint", project).passed()
    assert discover([project]).files == (project / "run.yaml",)
    assert f"left out {project / 'runs' / 'demo'}: a run directory" in answer.err
    assert f"left out {project / 'backup' / '20'}: a checkpoint" in answer.err


def test_a_bad_run_file_among_them_is_found(command, project):
    bad = write(project / "runs" / "next.json", '{"profile": "a100-prod", "trainer": {"save_steps": 0}}')
    kept = write(project / "kept" / "resolved.json", "{}").with_name("run.toml")
    write(kept, 'profile = "cpu-demo"\n[trainer]\nmax_step = 5\n')
    report = command("lint", project, "--output-format", "json").json
    bad.unlink()
    kept.unlink()
    assert {finding["file"] for finding in report["findings"]} == {str(bad), str(kept)}


@pytest.mark.parametrize(
    ("name", "text", "is_else"),
    [
        ("a.yaml", "trainer: {max_steps: 5}\n", False),
        ("a.yaml", "", False),
        ("a.yaml", "- 1\n", False),
        ("a.yaml", "# hooks\n\n- id: x\n", True),
        ("a.yaml", "trainer: [\n", False),
        ("a.yaml", "jobs:\n  trainer: 5\n", True),
        ("a.toml", "[model]\n", False),
        ("a.toml", "[tool.model]\n", True),
        ("a.json", '{"profile": "a100-prod"}', False),
        ("a.json", '{\n  "trainer": {"max_steps": 5}, "seed": 1\n}', False),
        ("a.json", '{"profile": "a100-prod", "verdict": "pass", "checks": []}', True),
        ("a.json", '{"name": "x", "dependencies": {"model": "1"}}', True),
        ("a.json", "[1]", True),
        ("a.json", "{}", True),
        ("a.json", "[" * 100_000, False),
        ("a.json", '{"trainer": {"max_steps": 5,},}', False),
        ("a.json", '{"compilerOptions": {}, /* a comment */}', True),
        ("resolved.json", '{"profile": "a100-prod"}', True),
    ],
)
def test_only_what_is_clearly_something_else_is_left_out(name, text, is_else, tmp_path):
    assert bool(reason_to_skip_file_in_folder(write(tmp_path / name, text))) is is_else


def test_a_folder_without_run_files_is_an_error(command, tmp_path):
    write(tmp_path / "workflow.yaml", "name: ci\n")
    command("lint", tmp_path).refused(2, "no run file or profile")


def test_a_folder_s_pipe_is_not_waited_for(tmp_path):
    write(tmp_path / "run.yaml", "profile: cpu-demo\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    found = discover([tmp_path])
    assert [path.name for path in found.files] == ["gone.yaml", "run.yaml"], "a broken link is told"
    assert [other.path.name for other in found.left_out] == ["pipe.yaml"]


@pytest.mark.parametrize("form", ["text", "github", "json", "junit", "sarif"])
def test_what_is_left_out_is_named_with_the_section_that_may_be_meant(form, command, tmp_path):
    write(tmp_path / "run.yaml", PROD)
    write(tmp_path / "typo.yaml", "trianer: {max_steps: 5}\nmodle: {rope: true}\n")
    for number in range(10):
        write(tmp_path / f"a{number}.yaml", "name: ci\non: push\njobs: {}\ndata: {}\n")
    answer = command("lint", tmp_path, "--output-format", form).passed()
    reported = [line for line in answer.err.splitlines() if line.startswith("left out")]
    why = "its top-level keys (trianer, modle) are not keys of a run file; did you mean trainer?"
    assert reported[0] == f"left out {tmp_path / 'typo.yaml'}: {why}"
    assert reported[1].endswith(
        "a0.yaml: its top-level keys (name, on, jobs, ...) are not keys of a run file"
    )
    assert len(reported) == 11
    assert reported[-1] == "left out 1 other path for similar reasons"


def test_a_parent_without_data_passes_and_a_run_on_it_does_not(command, tmp_path, monkeypatch):
    about = "about: {name: NAME, kind: KIND, intent: To try things.}\nextends: EXTENDED\n"
    for name, kind, extended in (("ours", "development", "cpu"), ("demo", "smoke", "cpu")):
        text = about.replace("NAME", name).replace("KIND", kind).replace("EXTENDED", extended)
        write(tmp_path / f"{name}.yaml", text)
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(tmp_path))
    assert command("lint", tmp_path / "ours.yaml").code == 0
    assert "DAT013" in command("lint", tmp_path / "demo.yaml").out
    run = write(tmp_path / "runs" / "run.yaml", "profile: ours\n")
    assert "DAT013" in command("lint", run).out
    write(run, "profile: ours\ndataset: {name: builtin:python-docs}\n")
    assert command("lint", run).code == 0


@pytest.mark.parametrize("name", ["other.toml", "other.json", "other.yaml"])
def test_a_huge_number_in_a_file_of_another_tool_hides_no_finding(name, command, tmp_path):
    number = "9" * 5000
    texts = {
        ".toml": f"[tool.x]\nbig = {number}\n",
        ".json": f'{{"big": {number}}}',
        ".yaml": f"big: {number}\n",
    }
    write(tmp_path / name, texts[Path(name).suffix])
    write(tmp_path / "run.yaml", "profile: cpu-demo\ntrainer: {max_stepz: 3}\n")
    answer = command("lint", tmp_path)
    assert (answer.code, "trainer.max_stepz is not a key" in answer.out) == (1, True)
    assert f"left out {tmp_path / name}" in answer.err


def test_junit_counts_the_failure_of_a_file_once(command, tmp_path):
    """The check of all files fails with each of them; with warnings under --strict, it alone fails."""
    bad = write(tmp_path / "bad.yaml", "profile: cpu-demo\ntrainer: {max_stepz: 3}\n")
    write(tmp_path / "good.yaml", "profile: cpu-demo\n")
    found = command("lint", tmp_path, "--output-format", "junit").out
    assert ' failures="1" ' in found
    assert "CFG010" not in found
    write(bad, "profile: cpu-demo\ntrainer: {max_steps: 99}\n")
    warned = command("lint", tmp_path, "--strict", "--output-format", "junit").out
    assert '<failure message="1 of 2 files failed">' in warned


@pytest.mark.parametrize("choice", [("--select", "CKP"), ("--ignore", "CFG010")])
def test_what_is_not_chosen_is_not_told_of_a_folder_either(choice, command, tmp_path):
    write(tmp_path / "bad.yaml", PROD + "trainer:\n  save_steps: 0\n")
    report = command("lint", tmp_path, *choice, "--output-format", "json").json
    assert "CKP001" in {finding["code"] for finding in report["findings"]}
    assert "CFG010" not in {check["id"] for check in report["checks"]}


def test_an_inherited_value_is_found_in_the_file_that_inherits_it(command, tmp_path, monkeypatch):
    """Two files and one profile: an annotation in the profile would tell nobody which file is wrong."""
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(tmp_path / "profiles"))
    for name in "ab":
        write(tmp_path / "configs" / f"{name}.yaml", f"seed: 1\n{PROD}distributed: {{nproc_per_node: 2}}\n")
    about = "about: {name: mine, kind: production, intent: Ours.}\n"
    write(
        tmp_path / "profiles" / "mine.yaml",
        f"{about}extends: a100-prod\ndistributed: {{nproc_per_node: 2}}\n",
    )
    report = command("lint", tmp_path, "--select", "BUD002", "--output-format", "json").json
    found = [(Path(each["file"]).name, each["line"], each["column"]) for each in report["findings"]]
    assert found == [("a.yaml", 2, 10), ("b.yaml", 2, 10), ("mine.yaml", 2, 10)]
    for each in report["findings"]:
        line = Path(each["inherited_file"]).read_text("utf-8").splitlines()[each["inherited_line"] - 1]
        assert line[each["inherited_column"] - 1 :].startswith("256"), "the value's own place"
        ending = f"; trainer.global_batch_size is inherited from _neobert, line {each['inherited_line']}"
        assert each["message"].endswith(ending)
    text = command("lint", tmp_path / "configs" / "a.yaml", "--select", "BUD002").out
    parent = report["findings"][0]
    assert f"set in {parent['inherited_file']}:{parent['inherited_line']}" in text
    assert re.search(r"global_batch_size: 256.*\n.*\^{3}\n", text)


def test_a_profile_is_read_once_for_all_the_files_that_name_it(command, tmp_path, monkeypatch):
    read: list[Path] = []
    registry.shipped_profile.cache_clear()
    monkeypatch.setattr(registry, "load_layers", lambda path: read.append(path) or load_layers(path))
    for number in range(3):
        write(tmp_path / f"run-{number}.yaml", f"{PROD}seed: {number}\n")
    write(tmp_path / "other.yaml", "profile: h100-prod\n")
    assert command("lint", tmp_path).code == 0
    assert sorted(path.stem for path in read) == ["a100-prod", "h100-prod"]


@pytest.mark.parametrize(
    "override",
    [["--set", "trainer.max_stepz=3"], ["--trainer.max_stepz", "3"], ["trainer.max_stepz=3"]],
)
def test_overrides_are_linted_with_each_file(override, command, run_file):
    path = run_file("profile: cpu-demo\n")
    answer = command("lint", "@", path, *override)
    assert answer.code == 2
    assert "did you mean trainer.max_steps?" in answer.out
    assert command("lint", path, "--seed", "9").code == 0


def test_select_and_ignore_take_prefixes(command, run_file):
    path = run_file(PROD + "trainer:\n  save_steps: 0\n  mixed_precision: fp32\n")

    def codes(*options: str) -> set[str]:
        report = command("lint", path, "--output-format", "json", *options).json
        return {finding["code"] for finding in report["findings"]}

    assert {"CKP001", "PRE001"} <= codes()
    assert codes("--select", "CKP") <= {"CKP001", "CKP002", "CKP003"}
    assert "PRE001" not in codes("--ignore", "PRE,BUD")
    assert codes("--select", "PRE004") == {"PRE001"}, "a retired code selects its successor"
    assert "PRE001" not in codes("--ignore", "PRE004")
    assert "PRE004 is retired: PRE001" in command("lint", path, "--ignore", "PRE004").err
    assert command("lint", path, "--select", "DAT").code == 0


def test_a_file_that_cannot_be_judged_cannot_be_deselected(command, run_file):
    path = run_file(PROD + "trainer:\n  save_step: 0\n")
    assert command("lint", path, "--select", "DAT", "--ignore", "CFG001").code == 1


def test_warnings_fail_under_strict_only(command, run_file):
    path = run_file(PROD + "tokenizer:\n  name: bert-base-uncased\n  path: null\n  revision: null\n")
    assert command("lint", path, "--select", "DAT008").code == 0
    assert command("lint", path, "--select", "DAT008", "--strict").code == 1


def test_statistics_count_codes(command, run_file):
    paths = [run_file(PROD + "trainer:\n  save_step: 5\n", f"{name}.yaml") for name in "ab"]
    assert "  2  CFG001  unknown-key" in command("lint", *paths, "--statistics").out


def test_the_order_does_not_depend_on_the_arguments(command, run_file):
    paths = [run_file(PROD + "trainer:\n  save_step: 5\n  save_stes: 4\n", f"{name}.yaml") for name in "ab"]
    assert command("lint", *paths).out == command("lint", *reversed(paths)).out


UNTIDY = """\
profile: cpu-demo   # the demo
trainer:
  # how often
  save_every: 50   # steps
  max_ckpt: 2
  max_steps: '100'
  tf32: yes
optimizer: {lr: "5e-4"}  # inline
"""
TIDY = """\
profile: cpu-demo   # the demo
trainer:
  # how often
  save_steps: 50   # steps
  save_total_limit: 2
  max_steps: 100
  tf32: true
optimizer: {lr: 5e-4}  # inline
"""


def test_fix_mends_what_is_safe_and_keeps_the_rest(command, run_file):
    path = run_file(UNTIDY)
    path.chmod(0o640)
    answer = command("lint", path, "--fix")
    again = command("lint", path, "--fix")
    assert path.read_text(encoding="utf-8") == TIDY
    assert (answer.code, again.code) == (0, 0)
    assert answer.err.count(f"fixed {path}") == 5
    assert "fixed 5 of 5 problems in keys and values\n" in answer.err
    assert "nothing to fix" in again.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_fix_keeps_line_ends_links_and_a_byte_order_mark(tmp_path):
    target = tmp_path / "target.yaml"
    target.write_bytes(b"\xef\xbb\xbfprofile: cpu-demo\r\ntrainer:\r\n  tf32: no\r\n")
    link = tmp_path / "link.yaml"
    link.symlink_to(target)
    assert len(fix_file(link).done) == 1
    assert link.is_symlink()
    assert target.read_bytes() == b"\xef\xbb\xbfprofile: cpu-demo\r\ntrainer:\r\n  tf32: false\r\n"


@pytest.mark.parametrize(
    "text",
    [
        "trainer:\n  save_every: 5\n  save_steps: 6\n",
        "trainer:\n  eval_strategy: epoch\n",
        "optimizer:\n  muon_config: {ns_steps: 5}\n",
        "scheduler:\n  warmup_ratio: 10\n",
        "evals_per_epoch: 4\n",
        "optimizer: adamw_bnb_8bit\nlearning_rate: 1e-3\n",
        "adam_beta1: 0.9\noptimizer: {betas: [0.9, 0.98]}\n",
        "report_to: all\n",
        "tokenizer_name: mine\n",
        "val_set_size: -1\n",
        "datasets:\n  - {path: a}\n",
        "trainer:\n  train_batch_size: 512\n",
        "train:\n  alpha: 0.5\n  name: text\n",
        "trainer:\n  fp16: true\n",
        "model:\n  dropout: 0.1\n",
        "trainer:\n  run_name: >\n    two\n    lines\n",
        "trainer: {learning_rate: 1e-3, max_steps: 5}\n",
        "trainer:\n  learning_rate: fast\n",
        "training: {max_steps: 5}\ntrainer: {seed: 1}\n",
        "quartet2: {enable: true}\n",
        "trainer:\n  output_dir: 5\n",
        "save_folder: ckpts/{run_name}\n",
        "task: regression\n",
        "adapter: {type: dora}\n",
        "seq_len: 256\ndataset: {max_seq_length: 128}\n",
    ],
)
def test_fix_leaves_alone_what_it_could_get_wrong(text, run_file):
    """Taken names, other sections, shares for percents, values that the new key would not take, guesses."""
    path = run_file("profile: cpu-demo\n" + text)
    assert fix_file(path).done == ()
    assert path.read_text(encoding="utf-8") == "profile: cpu-demo\n" + text


MIGRATED = {
    """\
# a run of another trainer
profile: cpu-demo
training:            # the loop
  max_steps: 20      # few
  learning_rate: 1e-3  # peak
  # half precision
  bf16: true
  save_every: 10
  report_to: wandb
  log_grad_norm: true  # always
tokenizer:
  truncation: true
optimizer:
  # Adam
  eps: 1e-8
""": """\
# a run of another trainer
profile: cpu-demo
trainer:            # the loop
  max_steps: 20      # few
  # half precision
  mixed_precision: bf16
  save_steps: 10
optimizer:
  # Adam
  eps: 1e-8
  lr: 1e-3  # peak
trackers: [wandb]
dataset:
  long_documents: truncate
""",
    "profile: cpu-demo\ntrainer:\n    lr: 5.0e-4\n    disable_tqdm: true": (
        "profile: cpu-demo\noptimizer:\n  lr: 5.0e-4\n"
    ),
    "profile: cpu-demo\nmodel:\n  save_steps: 5\n  use_flash: true\n": (
        "profile: cpu-demo\nmodel:\n  attn_backend: flash_attn_varlen\ntrainer:\n  save_steps: 5\n"
    ),
    "profile: cpu-demo\ntrainer: {bf16: true, save_every: 5}  # short\n": (
        "profile: cpu-demo\ntrainer: {mixed_precision: bf16, save_steps: 5}  # short\n"
    ),
    "profile: cpu-demo\nlr: 1e-3  # peak\nweight_decay: 0.1\noptimizer: {eps: 1e-8, }  # Adam\nseed: 3\n": (
        "profile: cpu-demo\n# peak\noptimizer: {eps: 1e-8, lr: 1e-3, weight_decay: 0.1}  # Adam\nseed: 3\n"
    ),
    "profile: cpu-demo\nsave_folder: ckpts/{run_name}\nrun_name: c4\nwandb: {}\n": (
        "profile: cpu-demo\nwandb: {name: c4}\ntrainer:\n  output_dir: ckpts/c4\n"
    ),
    'profile: cpu-demo\ntask: mlm  # words\ntrainer:\n  metric_for_best_model: "eval_loss"\n': (
        'profile: cpu-demo\ntask: pretrain  # words\ntrainer:\n  metric_for_best_model: "eval/loss"\n'
    ),
    "profile: cpu-demo\ndataset:\n  max_seq_len: 256  # short\n  path: notes\n": (
        "profile: cpu-demo\ndataset:\n  path: notes\n  max_seq_length: 256  # short\n"
        "model:\n  max_position_embeddings: 256\n"
    ),
    "profile: cpu-demo\nmodel: {max_position_embeddings: 256}\nseq_len: 256\n": (
        "profile: cpu-demo\nmodel: {max_position_embeddings: 256}\ndataset:\n  max_seq_length: 256\n"
    ),
    "profile: cpu\nmodel: {type: hf, config: bert}\nblock_size: 256\n": (
        "profile: cpu\nmodel: {type: hf, config: bert}\ndataset:\n  max_seq_length: 256\n"
    ),
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("text", MIGRATED)
def test_fix_moves_keys_to_their_counterparts(text, end, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(text.replace("\n", end).encode())
    fix_file(path)
    assert path.read_bytes().decode() == MIGRATED[text].replace("\n", end)
    assert fix_file(path).done == (), "nothing is left that a second time would fix"


def test_fix_leaves_a_file_of_another_tool_alone(command, tmp_path):
    text = "site_name: x\nstrict: true\nnav: []\nplugins: []\ntheme: {name: y}\n"
    site = write(tmp_path / "mkdocs.yml", text)
    answer = command("lint", "--fix", site)
    assert (answer.code, site.read_text()) == (1, text)
    assert "[*]" not in answer.out


def test_fix_says_how_much_is_left(command, run_file):
    partly = command("lint", "--fix", run_file(next(iter(MIGRATED))))
    assert "fixed 7 of 7 problems in keys and values\n" in partly.err
    none = command("lint", "--fix", run_file("profile: cpu-demo\ntrainer: {report_to: all}\n"))
    assert none.code == 1, "what is left is linted again"
    assert "fixed 0 of 1 problem in keys and values; fix the rest manually" in none.err


def test_fix_says_why_it_leaves_keys_of_json(command, tmp_path):
    path = write(tmp_path / "args.json", '{"learning_rate": 5e-5, "report_to": ["wandb"], "do_train": true}')
    reason = "fix the rest manually: in JSON and TOML, --fix renames keys, but does not move or remove them\n"
    assert f"fixed 1 of 3 problems in keys and values; {reason}" in command("lint", "--fix", path).err


def test_fix_translates_values_of_json(tmp_path):
    path = write(tmp_path / "run.json", '{"task": "mlm", "trainer": {"mixed_precision": true}}')
    assert len(fix_file(path).done) == 2
    assert path.read_text() == '{"task": "pretrain", "trainer": {"mixed_precision": "bf16"}}'


def test_fix_says_which_number_of_steps_holds_without_the_one_it_removed(command, run_file):
    """Hugging Face's -1 leaves the end to the epochs; here the profile's steps would hold unseen."""
    epochs = "num_train_epochs: 3\n"
    both = "700 (from cpu-demo.yaml:44), or earlier after 3 epochs"
    for others, end in {f"profile: cpu-demo\n{epochs}": both, "seed: 1\n": "1,000 (the default)"}.items():
        path = run_file(f"{others}max_steps: -1\n")
        reported = command("lint", "--fix", path).err
        assert f"note: {path}: the run ends at trainer.max_steps {end}\n" in reported
    path = run_file(f"profile: cpu-demo\n{epochs}max_steps: -1\ntrainer:\n  report_to: all\n")
    assert f"note: {path}: the run ends at trainer.max_steps {both}\n" in command("lint", "--fix", path).err
    path = run_file("profile: cpu-demo\nfp16: false\n" + epochs)
    assert f"note: {path}: the run ends at trainer.max_steps {both}\n" in command("lint", "--fix", path).err
    path = run_file("profile: cpu-demo\nspecial_tokens:\n  pad_token: x\nnum_train_epochs: 1\n")
    assert (
        f"note: {path}: the run ends at trainer.max_steps {both[:-8]}1 epoch\n"
        in command("lint", "--fix", path).err
    )
    ended = f"profile: cpu-demo\ntrainer:\n  max_steps: 50\n  {epochs}"
    assert "note:" not in command("lint", "--fix", run_file(ended)).err


def test_fix_names_what_a_recipe_leaves_to_the_profile(command, run_file):
    """Another trainer has no weight decay, and rows of one conversation, where its file says nothing."""
    rate = "profile: cpu-demo\nlearning_rate: 1.0e-4\nlr_scheduler_type: linear\nadam_beta1: 0.9\n"
    left = "optimizer.weight_decay, scheduler.final_lr_ratio, trainer.gradient_clipping, datacollator.pack"
    assert f"which may differ from the other trainer: {left}" in command("lint", "--fix", run_file(rate)).err
    for whole in ("profile: cpu-demo\noptimizer:\n  lr: 1e-4\n", "profile: cpu-demo\nlogging_steps: 1\n"):
        assert "perhaps unlike" not in command("lint", "--fix", run_file(whole)).err


def test_fix_says_that_rows_hold_several_texts(command, run_file):
    """A batch of 32 short texts was 360 steps of three epochs elsewhere, and is 39 steps here."""
    told = "counts rows, and a row holds several short texts"
    rows = "profile: cpu-demo\nper_device_train_batch_size: 32\n"
    assert told in command("lint", "--fix", run_file(rows)).err
    padded = "datacollator:\n  pack_sequences: false\n"
    assert told not in command("lint", "--fix", run_file(rows + padded)).err
    assert told not in command("lint", "--fix", run_file("profile: cpu-demo\nlearning_rate: 1e-4\n")).err


@pytest.mark.parametrize("section", ["", "training:\n  "])
@pytest.mark.parametrize("is_first", [True, False])
def test_fix_lets_a_number_of_warm_up_steps_win_over_a_ratio(run_file, section, *, is_first):
    """As transformers does; here a share would win over the steps."""
    for steps, expected in {90: {"warmup_steps": 90}, 0: {"warmup_steps": 0, "warmup_percent": 6}}.items():
        entries = [f"warmup_steps: {steps}", "warmup_ratio: 0.06"]
        indent = "\n  " if section else "\n"
        text = f"profile: cpu-demo\n{section}{indent.join(entries if is_first else entries[::-1])}\n"
        path = run_file(text)
        fix_file(path)
        assert yaml.safe_load(path.read_text())["scheduler"] == expected


HF_TRAINER = {
    "per_device_train_batch_size: 16": "trainer.per_device_train_batch_size: 16",
    "learning_rate: 5e-4  # peak": "optimizer.lr: 5e-4",
    "adam_beta1: 0.8": "optimizer.betas: [0.8, 0.98]",
    "adam_beta2: 0.98": "",
    "num_train_epochs: 3": "trainer.max_epochs: 3",
    "max_steps: -1": "removed",
    "warmup_ratio: 0.06": "scheduler.warmup_percent: 6",
    "lr_scheduler_type: linear": "scheduler.name: linear",
    "fp16: false": "removed",
    "bf16: true": "trainer.mixed_precision: bf16",
    "save_strategy: steps": "removed",
    "save_steps: 500": "trainer.save_steps: 500",
    'eval_strategy: "no"': "trainer.eval_steps: 0",
    "max_grad_norm: 0.5": "trainer.gradient_clipping: 0.5",
    "optim: adamw_torch_fused": "optimizer.name: adamw",
    "report_to: [wandb, tensorboard]": "trackers: [wandb, tensorboard]",
    "load_best_model_at_end: true": "removed",
    "metric_for_best_model: eval_accuracy": "trainer.metric_for_best_model: eval/accuracy",
    "use_liger_kernel: true": "removed",
    "attn_implementation: flash_attention_2": "removed",
    "train_file: text.txt": "dataset.path: text.txt",
    "validation_split_percentage: 5": "dataset.validation_split: 0.05",
    "gradient_checkpointing:": "removed",
}
AXOLOTL = {
    "optimizer: adamw_torch  # fused": "optimizer.name: adamw",
    "learning_rate: 0.0002": "optimizer.lr: 0.0002",
    "weight_decay: 0.0": "optimizer.weight_decay: 0.0",
    "sequence_len: 256": "dataset.max_seq_length: 256",
    "sample_packing: true": "datacollator.pack_sequences: true",
    "pad_to_sequence_len: true": "removed",
    "val_set_size: 0.05": "dataset.validation_split: 0.05",
    "micro_batch_size: 2": "trainer.per_device_train_batch_size: 2",
    "num_epochs: 1.5": "trainer.max_epochs: 1.5",
    "bf16: auto": "trainer.mixed_precision: bf16",
    "fp16:": "removed",
    "wandb_project: mine": "wandb.project: mine",
    "early_stopping_patience:": "removed",
    "special_tokens:": "removed",
    "load_in_8bit: false": "removed",
    "flash_attention: true": "removed",
    "adapter: lora": "adapter.type: lora",
    "lora_r: 16": "adapter.r: 16",
    "lora_alpha: 32": "adapter.alpha: 32",
    "lora_dropout: 0.05": "adapter.dropout: 0.05",
    "lora_target_linear: true": "removed",
}


WORDS_AFTER_KEYS = {
    "lora_r: 16": "adapter.r: 16",
    "learning_rate: 2e-5": "optimizer.lr: 2e-5",
    "adapter: lora": "adapter.type: lora",
    "optimizer: adamw_torch": "optimizer.name: adamw",
}
"""Each word becomes the section that keys above it move to."""


SENTENCE_TRANSFORMERS = {
    "loss: MultipleNegativesRankingLoss": "task: contrastive",
    "batch_sampler: no_duplicates": "removed",
    "learning_rate: 2e-5": "optimizer.lr: 2e-5",
    "run_name: pairs": "wandb.name: pairs",
}


@pytest.mark.parametrize(
    "entries",
    [
        {"task: classification": "", **HF_TRAINER},
        {"task: classification": "", **AXOLOTL},
        SENTENCE_TRANSFORMERS,
        {"task: classification": "", **WORDS_AFTER_KEYS},
    ],
    ids=["transformers", "axolotl", "sentence-transformers", "words after keys"],
)
def test_fix_migrates_the_files_of_other_trainers(entries, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("\n".join(["profile: gpu", *entries]))
    fixed = fix_file(path)
    assert len(fixed.done) == fixed.num_problems, "every problem has its line in the report"
    values = yaml.safe_load(path.read_text())
    sections = {section: keys for section, keys in values.items() if isinstance(keys, dict)}
    flat = {f"{section}.{key}" for section, keys in sections.items() for key in keys}
    assert flat <= set(all_keys())
    for entry, meant in entries.items():
        name, _, text = meant.partition(": ")
        if meant == "removed":
            assert any(f"removed {entry.partition(':')[0]}: " in line for line in fixed.done), entry
        elif meant:
            section, _, key = name.rpartition(".")
            found = values[section][key] if section else values[key]
            assert found == yaml.safe_load(text), entry
    assert fix_file(path).done == ()


KEYS_OF_OTHERS = sorted(
    {name.rpartition(".")[2] for name in (*rename_table()["names"], *rename_table()["keys"])}
)
LINES = st.lists(
    st.tuples(
        st.sampled_from(KEYS_OF_OTHERS),
        st.sampled_from(["1", "true", "0.5", "no", "text", "[0.9, 0.95]", '"x"', "null"]),
        st.sampled_from(["", "  # why"]),
    ),
    min_size=1, max_size=5, unique_by=lambda line: line[0],
)  # fmt: skip


@given(st.sampled_from(["trainer", "training", "optimizer"]), LINES, st.sampled_from(["\n", "\r\n"]))
def test_fix_never_adds_a_problem_or_loses_a_setting(tmp_path_factory, section, lines, end):
    path = tmp_path_factory.mktemp("fix") / "run.yaml"
    body = [f"  {name}: {value}{comment}" for name, value, comment in lines]
    path.write_bytes(end.join(["# head", "profile: cpu-demo", f"{section}:", *body, ""]).encode())
    fixed = fix_file(path)
    text = path.read_bytes().decode()
    again = fix_file(path)
    assert again.done == ()
    assert again.num_problems <= fixed.num_problems - len(fixed.done)
    assert text.startswith(f"# head{end}profile: cpu-demo{end}")
    assert text.count("\r") == (text.count("\n") if end == "\r\n" else 0)
    num_removed = sum(" removed " in done for done in fixed.done)
    assert sum(": " in line for line in text.splitlines()) >= 1 + len(lines) - num_removed


def test_an_edit_needs_the_text_it_replaces():
    assert apply_edit("a: yes\n", Edit(1, 4, "yes", "true")) == "a: true\n"
    assert apply_edit("a: yesterday\n", Edit(1, 4, "yes", "true")) is None
    assert apply_edit("a: no\n", Edit(1, 4, "yes", "true")) is None
    assert apply_edit("a: yes\n", Edit(7, 4, "yes", "true")) is None


@given(st.lists(st.sampled_from(["# note", "", "  seed: 1", "key: yes"]), max_size=6), st.integers(1, 8))
def test_an_edit_changes_one_line_only(lines, number):
    source = "".join(f"{line}\r\n" for line in lines)
    mended = apply_edit(source, Edit(number, 6, "yes", "true"))
    if mended is not None:
        changed = [
            i
            for i, (old, new) in enumerate(zip(source.split("\n"), mended.split("\n"), strict=True))
            if old != new
        ]
        assert changed == [number - 1]


AS_JSON = ("--output-format", "json")


@pytest.mark.parametrize(("family", "codes"), [("neobert", ("DAT034", "warn")), ("hf", ("MOD006", "fail"))])
def test_weights_named_on_the_hub_are_to_be_downloaded(command, run_file, family, codes):
    """One finding, at the key; a folder of that name is not taken for a name on the Hub."""
    path = run_file(f"profile: cpu\nmodel:\n  type: {family}\n  pretrained_checkpoint: owner/bert-x\n")
    findings = command("lint", path, *AS_JSON).json["findings"]
    (finding,) = [each for each in findings if each["path"] == "model.pretrained_checkpoint"]
    assert (finding["code"], finding["severity"]) == codes
    assert (finding["file"], finding["line"], finding["column"]) == (str(path), 4, 26)
    assert "owner/bert-x is not a folder here" in finding["message"]
    place = path.parent / "owner" / "bert-x"
    assert "set model.revision to a commit; `neobert-launch init --from owner/bert-x`" in finding["hint"]
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "albert"}', encoding="utf-8")
    findings = command("lint", path, *AS_JSON).json["findings"]
    assert any("albert" in each["message"] for each in findings) == (family == "hf")
    assert "DAT034" not in {each["code"] for each in findings}


def test_an_architecture_that_is_not_supported_is_named_at_its_key(command, run_file):
    path = run_file("profile: cpu\nmodel:\n  type: hf\n  config: albert\n")
    (path.parent / "albert").mkdir()
    (path.parent / "albert" / "config.json").write_text('{"model_type": "albert"}', encoding="utf-8")
    (finding,) = command("lint", path, *AS_JSON).json["findings"]
    assert (finding["code"], finding["line"], finding["column"]) == ("MOD006", 4, 11)
    assert "models of type bert, modernbert, roberta, " in finding["message"]
    assert finding["hint"] == "set model.config to a model of a supported type"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.num_attention_heads", "9223372036854775807", "is not divisible by 9223372036854775807 heads"),
        ("trainer.max_epochs", "1e300", ""),
        ("trainer.max_epochs", "1.7e308", ""),
    ],
)
def test_absurd_numbers_are_counted_without_going_over_them(command, run_file, key, value, message):
    run_file("A sentence.\n\n" * 500, "text.txt")
    run = run_file("profile: cpu\ndataset: {path: text.txt}\ntokenizer: {vocab_size: 512}\n")
    answer = command("lint", run, f"--{key}", value)
    assert (answer.code, message in answer.out) == (1 if message else 0, True)
    assert "unexpected" not in answer.err
