"""What the pages promise is there: files, commands, make targets, and what the README shows."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from launcher.cli.app import run
from launcher.probes.gpus import NO_GPU

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR, START, EXPORT = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("tour", "start", "export")
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    written = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = set(re.findall(r"(?:`|^)make ([a-z-]+)", written, re.MULTILINE))
    assert {"demo", "test", "mutation", "bench-gpu"} <= targets
    assert {each for each in targets if f"\n{each}:" not in makefile} == set()


def test_the_example_that_is_shown_is_refused_as_shown(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run(["lint", "examples/toy-on-a100.yaml"]) == 1
    out = capsys.readouterr().out
    shown = TOUR.split("$ neobert-launch lint examples/toy-on-a100.yaml\n")[1].split("$ echo")[0]
    assert set(shown.splitlines()) - {"..."} <= set(out.splitlines())
    assert {"MOD001", "PRE001", "CKP001", "ATT004", "BUD001", "BUD002"} <= set(re.findall(r"fail (\w+)", out))


def test_the_plan_that_is_shown_is_the_plan(capsys):
    assert run(["plan", "--profile", "h200-prod"]) == 0
    assert capsys.readouterr().out in TOUR


def test_the_preflight_that_is_shown_is_one_of_a_machine_without_a_gpu(capsys, tmp_path):
    facts = ROOT / "tests" / "facts" / "cpu-asked-for-h200.json"
    words = ["preflight", "--profile", "a100-prod", "--level", "static,host,gpu", "--facts", str(facts)]
    assert run([*words, "--output", str(tmp_path)]) == 3
    reported, shown = capsys.readouterr().out, TOUR.split("# on a laptop\n")[1].split("```")[0]
    for form in (r"^UNKNOWN: .+", r"^\d+ checks \(.+?\): "):
        assert re.findall(form, shown, re.MULTILINE) == re.findall(form, reported, re.MULTILINE)
    # The recording is older than this line, which a machine without a GPU has once.
    assert re.findall(r"^unknown (.+): \d+ checks not run$", shown, re.MULTILINE) == [NO_GPU]


@pytest.mark.child
def test_what_the_page_calls_to_respell_weights_is_there():
    (sentence,) = re.findall(r"\S*read_weights.*?back\.", EXPORT, re.DOTALL)
    called = re.findall(r"\w+_\w+", sentence)
    assert (
        {"read_weights", "hub_to_fork", "fork_to_hub"}
        <= set(called)
        <= set(import_module("neobert.export").__all__)
    )


def test_the_memory_that_the_page_predicts_is_what_plan_says(capsys):
    predicted = []
    for kernels in ("fused", "triton", "torch"):
        words = ["plan", "-p", "h200-prod", f"model.kernel_backend={kernels}"]
        assert run([*words, "--output-format", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)["plan"]
        predicted.append(f"{plan['memory_mib']['value']:,.0f}")
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "`plan` predicts {}, {} and {} MiB".format(*predicted) in page
    page = (ROOT / "docs" / "model-size.md").read_text(encoding="utf-8")
    for count, steps in ((64, 4), (8, 32)):
        words = [
            f"trainer.per_device_train_batch_size={count}",
            f"trainer.gradient_accumulation_steps={steps}",
        ]
        assert run(["plan", "-p", "h200-prod", *words, "--json"]) == 0
        memory_mib = json.loads(capsys.readouterr().out)["plan"]["memory_mib"]["value"]
        assert re.search(rf"{memory_mib / 1024:.1f} GiB[^.]* with {count} rows", page)


def test_the_run_file_of_the_readme_needs_nothing_else(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    Path("run.yaml").write_text(block, encoding="utf-8")
    Path("notes").mkdir()
    Path("notes", "some.txt").write_text("one document\n\nanother document\n", encoding="utf-8")
    assert len(block.splitlines()) == 5
    assert run(["lint", "run.yaml"]) == 0, capsys.readouterr().out
    for command in re.findall(r"^neobert-launch .*?run\.yaml", README, re.MULTILINE):
        assert run([*command.split()[1:-1], "--help"]) == 0


def test_the_commands_of_the_readme_exist(capsys):
    table = README.split("## Commands")[1].split("## ")[0]
    commands = [
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(.*?)`", row)
    ]
    assert len(commands) > 15
    for command in commands:
        assert run([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out


def test_the_other_example_passes():
    assert run(["lint", str(ROOT / "examples" / "real-text.yaml")]) == 0
