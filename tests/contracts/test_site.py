"""The documentation: links lead somewhere, commands work as written, the reference covers the code."""

import ast
import html
import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launcher.cli import app
from neobert.config import all_keys
from profiles.registry import list_profiles
from validators.rule import RULES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
METRIC = re.compile(r"(?:train|perf|data|time|memory)/[a-z_{}]*[a-z}]")
FILE = re.compile(r"# (\S+\.yaml)\b")


@cache
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", DOCS / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def written_pages() -> dict[Path, str]:
    """Return the text of each page of the repository by its path."""
    return {path: path.read_text("utf-8") for path in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]}


@cache
def pages() -> dict[Path, str]:
    """Return the text of each page by its path: those of the repository, and the generated ones."""
    return written_pages() | {DOCS / path: content() for path, content in reference().PAGES.items()}


@cache
def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as MyST and GitHub make them."""
    bare = FENCE.sub("", text)
    titles = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(bare))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken(path: Path, text: str) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for link in LINK.findall(FENCE.sub("", text)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if target in pages():
            if anchor and anchor not in anchors(pages()[target]):
                yield link
        elif not target.exists() or anchor:
            yield link


def test_every_link_leads_to_a_page_and_a_heading():
    found = {path.name: list(broken(path, text)) for path, text in pages().items()}
    assert {name: links for name, links in found.items() if links} == {}


def test_a_broken_link_is_found():
    page = DOCS / "index.md"
    links = "[a](nowhere.md) [b](start.md#nowhere) [c](start.md) [d](start.md#3-train) [e](../nowhere.yaml)"
    assert list(broken(page, links)) == ["nowhere.md", "start.md#nowhere", "../nowhere.yaml"]


@pytest.mark.child
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_long_line_of_code_stays_in_its_block(tmp_path):
    longest = max(
        (line for text in pages().values() for _, code in FENCE.findall(text) for line in code.split("\n")),
        key=len,
    )
    page = tmp_path / "page.html"
    page.write_text(
        f"<style>{(DOCS / 'code.css').read_text('utf-8')}</style>"
        f'<div class="highlight" style="width: 46em"><pre>{html.escape(longest)}</pre></div>'
        "<script>const pre = document.querySelector('pre');"
        "document.title = `${pre.clientWidth > 0} ${pre.scrollWidth <= pre.clientWidth}`</script>",
        encoding="utf-8",
    )
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={tmp_path / 'browser'}",
    ]
    command = [
        "chromium",
        *flags,
        "--disable-background-networking",
        "--window-size=1280,900",
        "--dump-dom",
        page.as_uri(),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>true true</title>" in shown


def test_every_page_is_in_the_navigation():
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text("utf-8"), re.M | re.S)
    listed = {re.sub(r".*<(.+)>", r"\1", line) for tree in trees for line in tree.splitlines()}
    named = {path.relative_to(DOCS).with_suffix("").as_posix() for path in pages() if path.parent != ROOT}
    assert named - {"index"} - listed == set(), "add the page to a toctree of docs/index.md"


def test_the_reference_covers_keys_profiles_rules_and_commands():
    generated = {path: pages()[DOCS / path] for path in reference().PAGES}
    assert [key for key in all_keys() if f"`{key}`" not in generated["reference/keys.md"]] == []
    assert [
        name for name in list_profiles() if f"## {name}\n" not in generated["reference/profiles.md"]
    ] == []
    assert "## tokenizer train\n" in generated["reference/commands.md"]
    assert "--dry-run" in generated["reference/commands.md"]
    assert [code for code in RULES if f"## {code} " not in (DOCS / "rules.md").read_text("utf-8")] == []


def test_the_table_of_metrics_has_what_the_trainer_writes():
    folders = [ROOT / "neobert" / "training" / "telemetry", ROOT / "neobert" / "optim"]
    trees = [ast.parse(file.read_text("utf-8")) for folder in folders for file in folder.rglob("*.py")]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    written = {text for text in texts if isinstance(text, str) and METRIC.fullmatch(text)}
    assert len(written) > 12
    assert written - set(reference().METRICS) == set()


def blocks() -> list[Any]:
    """Return one case per page that has commands to run: `sh` is run, `sh no-run` is not.

    A preflight starts git, which the unit set forbids. Generated pages have no commands to run.
    """
    named = ((path, FENCE.findall(text)) for path, text in written_pages().items())
    return [
        pytest.param(found, id=path.stem, marks=[pytest.mark.child] if starts_processes(found) else [])
        for path, found in sorted(named)
        if any(info == "sh" for info, _ in found)
    ]


def starts_processes(found: list[tuple[str, str]]) -> bool:
    return any(info == "sh" and "neobert-launch preflight" in text for info, text in found)


@pytest.mark.parametrize("found", blocks())
def test_the_commands_of_a_page_work_as_written(found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("A line of text.\n\n" * 1000)
    for info, text in found:
        if info == "yaml" and (named := FILE.match(text)):
            Path(named[1]).write_text(text, encoding="utf-8")
        elif info == "python":
            compile(text, "page", "exec")
        elif info == "sh":
            for line in text.splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "neobert-launch"
                code = app.run(words)
                assert code == 0, (line, capsys.readouterr())


def test_generated_pages_have_no_commands_to_run():
    generated = [pages()[DOCS / path] for path in reference().PAGES]
    assert [info for text in generated for info, _ in FENCE.findall(text) if info == "sh"] == []


def test_the_pages_for_users_have_commands_that_are_run():
    wanted = {
        "start", "own-data", "model-size", "gpus", "migrate", "watching", "troubleshooting",
        "classification", "continue", "token-classification", "decoders", "cluster",
    }  # fmt: skip
    assert wanted <= {str(case.id) for case in blocks()}
