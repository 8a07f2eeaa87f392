"""Plug-ins as `lint` and `plan` see them: read, and never run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.plugins.changes import plugin_differences
from neobert.plugins.kinds import METRICS
from neobert.plugins.loading import Plugin, PluginError, load_plugins
from neobert.plugins.time_limit import limit_calls
from profiles.registry import RecordedRun, resolve_run

MASKING = "import helpers\n\n\ndef spans(ids, special, rng, context):\n    return helpers.spans(ids)\n"
FILES = {
    "masking.py": MASKING,
    "helpers.py": "from package import deep\n\n\ndef spans(ids):\n    return deep.spans(ids)\n",
    "package/__init__.py": "",
    "package/deep.py": "def spans(ids):\n    return ids, ids\n",
    "unrelated.py": "",
    "many.py": """\
import json as imported
async def coroutine(ids, special, rng, context): ...
def two(predictions, labels): ...
def keyword(ids, special, rng, context, *, more): ...
def flexible(*arguments, **more): ...
class Hook:
    def __init__(self):
        self.seen = []
    def on_step(self, step, metrics):
        self.seen.append(step)
class Kept(Hook):
    def state_dict(self): return {}
    def load_state_dict(self, state): ...
class Silent:
    def unheard(self): ...
class Half:
    def on_step(self, step, metrics): ...
    def state_dict(self): return {}
class Late:
    def on_checkpoint(self, step, folder):
        self.newest.step = step
    def state_dict(self): return {}
    def load_state_dict(self, state): self.newest = state
class Counter:
    def on_step(self, step, metrics):
        global count
        count += 1
class Wrong:
    def on_step(self, metrics): ...
""",
    "broken.py": "def spans(:\n",
    "hidden/json.py": "def spans(ids, special, rng, context): ...\n",
    "other/helpers.py": "def cost(predictions, labels): ...\n",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    for name, content in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")


def linted(command: Callable[..., Any], text: str) -> Any:
    Path("run.yaml").write_text(f"profile: cpu-demo\n{text}", encoding="utf-8")
    return command("lint", "run.yaml")


@pytest.mark.parametrize(
    ("section", "message", "hint"),
    [
        ("masking: absent.py:spans", "'absent.py' does not exist", "an existing file"),
        ("masking: masking.py:spam", "'masking.py' defines no 'spam'", "one of its functions (spans)"),
        (
            "masking: masking.py",
            "no installed package has the entry point 'masking.py'",
            "write path/to/file.py",
        ),
        ("masking: masking.py:a b", "does not end with the name of a function", "file.py:function"),
        ("masking: no_such_package.rules:spans", "no module 'no_such_package.rules'", "install the package"),
        (
            "masking: many.py:two",
            "many.py:3: two takes (predictions, labels), but is called with (ids,",
            "def two",
        ),
        ("masking: many.py:keyword", "takes (ids, special, rng, context, more)", "def keyword("),
        ("masking: many.py:coroutine", "coroutine is a coroutine", "def coroutine("),
        ("masking: many.py:Hook", "Hook is a class, not a function", "write a function of (ids, special"),
        ("masking: broken.py:spans", "'broken.py', line 1: invalid syntax", "fix the syntax"),
        (
            "masking: hidden/json.py:spans",
            "'hidden/json.py' is hidden by the installed module json",
            "rename json.py",
        ),
        ("hooks: [many.py:Hook]", "many.py:10: Hook.on_step changes self.seen", "add state_dict and load"),
        ("hooks: [many.py:Silent]", "has none of the methods on_step", "add one of these methods"),
        (
            "hooks: [many.py:Half]",
            "only one of state_dict and load_state_dict",
            "add the method load_state_dict",
        ),
        (
            "hooks: [many.py:Late]",
            "Late.on_checkpoint changes self.newest when a checkpoint",
            "in on_step or",
        ),
        ("hooks: [many.py:Counter]", "Counter.on_step changes count, which no checkpoint keeps", "add state"),
        (
            "hooks: [many.py:Wrong]",
            "takes (self, metrics), but is called with (self, step, metrics)",
            "on_step(",
        ),
        (
            "{masking: masking.py:spans, metrics: [other/helpers.py:cost]}",
            "would be imported under the same name",
            "rename one of the files",
        ),
    ],
)
def test_lint_names_what_is_wrong_with_a_plugin(command, section, message, hint):
    text = f"plugins: {section}" if section.startswith("{") else f"plugins:\n  {section}"
    found = linted(command, f"{text}\n")
    assert found.code == 1
    assert "fail PLG001 unusable-plugin: plugins." in found.out
    assert message in " ".join(found.out.split())
    assert hint in " ".join(found.out.split())
    assert "--> run.yaml:" in found.out


@pytest.mark.parametrize("name", ["flexible", "imported"])
def test_a_function_that_may_take_these_arguments_is_left_to_the_test_before_the_launch(command, name):
    assert linted(command, f"plugins:\n  masking: many.py:{name}\n").code == 0


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("plugins: {loss: many.py:two}", "PLG004", "plugins.loss is not called by task pretrain"),
        ("plugins: {metrics: [many.py:two]}", "PLG004", "plugins.metrics.0 is not called by task pretrain"),
        (
            "plugins: {dataset: many.py:flexible}\ndataset: {path: text.txt}",
            "PLG001",
            "dataset.path is set too",
        ),
        (
            "plugins: {metrics: [many.py:two]}\ntask: classification\ndataset: {long_documents: truncate}\n"
            "trainer: {metric_for_best_model: eval/cost}",
            "PLG004",
            "eval/cost is a metric of a plug-in and has no default direction",
        ),
        ("trainer: {metric_for_best_model: eval/cost}", "TSK002", "metric_for_best_model is eval/cost"),
    ],
)
def test_a_plugin_that_no_task_calls(command, text, code, message):
    found = linted(command, f"{text}\n")
    assert found.code == 1
    assert f"fail {code} " in found.out
    assert message in " ".join(found.out.split())


def test_the_name_of_a_plugin_is_printed_without_its_control_characters(command):
    for key in ('masking: "a\\x1b[31m\\nb.py:spans"', 'hooks: ["\\x1b]0;title\\x07"]', 'loss: "x\\x1b:y\\n"'):
        found = linted(command, f"plugins:\n  {key}\n")
        assert found.code == 1
        assert "PLG001" in found.out
        assert "\x1b" not in found.out + found.err
        assert "\x07" not in found.out + found.err


def test_lint_and_plan_run_no_code_of_a_plugin(command):
    Path("helpers.py").write_text("open('ran', 'w').close()\n", encoding="utf-8")
    assert linted(command, "plugins:\n  masking: masking.py:spans\n").code == 0
    assert command("plan", "run.yaml").code == 0
    assert command("train", "run.yaml", "--dry-run").code == 0
    assert command("explain", "plugins.masking", "run.yaml").code == 0
    assert not Path("ran").exists()


def code_of() -> tuple[list[str], str]:
    run = resolve_run(None, ["run.yaml"])
    return [line.partition("  ")[2] for line in run.config.plugins.code], run.digest


def test_a_plugin_and_all_that_it_imports_from_its_folder_are_in_the_digest(command):
    assert linted(command, "plugins:\n  masking: masking.py:spans\n").code == 0
    files, digest = code_of()
    assert files == ["helpers.py", "masking.py", "package/__init__.py", "package/deep.py"]
    Path("unrelated.py").write_text("1\n", encoding="utf-8")
    assert code_of() == (files, digest)
    for name in files:
        Path(name).write_text(f"{FILES[name]}# edited\n", encoding="utf-8")
        assert code_of()[1] != digest
        Path(name).write_text(FILES[name], encoding="utf-8")
    assert code_of() == (files, digest)


def test_a_path_is_relative_to_the_run_file_and_the_digest_names_no_folder():
    Path("below").mkdir()
    Path("below/run.yaml").write_text("profile: cpu-demo\nplugins: {masking: ../masking.py:spans}\n")
    run = resolve_run(None, ["below/run.yaml"])
    assert run.config.plugins.masking == "below/../masking.py:spans"
    assert all("below" not in line for line in run.config.plugins.code)
    again = resolve_run(None, [], [f"plugins.masking={run.config.plugins.masking}"])
    assert again.config.plugins.code == run.config.plugins.code


def test_an_installed_package_is_identified_by_its_version(command):
    found = linted(command, "plugins: {dataset: yaml:load_all}\n")
    assert "load_all takes (stream, Loader), but is called with (split)" in " ".join(found.out.split())
    Path("run.yaml").write_text("profile: cpu-demo\nplugins: {dataset: yaml:safe_load}\n")
    (line,) = resolve_run(None, ["run.yaml"]).config.plugins.code
    assert line.lower().startswith("pyyaml ")


def test_an_environment_below_the_folder_and_a_link_to_a_file_are_imported_as_ever(monkeypatch):
    """The project's folder with `.venv` in it: none of its packages is a file of the user."""
    inner = Path(".venv/lib/python3/site-packages/inner").absolute()
    inner.mkdir(parents=True)
    for name in ("__init__", "deep"):
        (inner / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(inner.parent))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    Path("elsewhere").mkdir()
    text = "import inner.deep\n\n\ndef rows(split): ...\n"
    Path("elsewhere/linked.py").write_text(text, encoding="utf-8")
    Path("rows.py").symlink_to("elsewhere/linked.py")
    Path("run.yaml").write_text("profile: cpu-demo\nplugins: {dataset: rows.py:rows}\n", encoding="utf-8")
    config = resolve_run(None, ["run.yaml"]).config
    (plugin,) = load_plugins(config.plugins)
    assert plugin.function.__module__ == "rows"
    assert Path(sys.modules["inner.deep"].__file__ or "").parent == inner
    for name in ("rows", "inner", "inner.deep"):
        del sys.modules[name]


def test_each_change_between_a_checkpoint_and_a_run_is_named():
    saved = {"masking": "old/a.py:f", "hooks": [], "code": ["1  a.py", "2  b.py", "3  c.py", "package 1.0"]}
    current = {"masking": "new/a.py:f", "metrics": [], "hooks": ["d.py:H"], "dataset": None, "loss": None}
    current["code"] = ["1  a.py", "5  b.py", "4  d.py", "package 2.0"]
    assert plugin_differences({"plugins": saved}, {"plugins": current}) == (
        "b.py was edited",
        "c.py was removed",
        "d.py was added",
        "package was version 1.0 and is 2.0",
        "plugins.hooks: none in the checkpoint, d.py:H in this run",
    )
    assert plugin_differences({}, {"plugins": to_dict(RunConfig())["plugins"]}) == ()


@pytest.mark.child
def test_the_interfaces_import_neither_torch_nor_numpy():
    program = "import sys, neobert.plugins; sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("is_editable", [False, True])
def test_an_entry_point_is_its_package_and_an_editable_one_its_files(tmp_path, monkeypatch, is_editable):
    site = tmp_path / "site"
    about = site / "unlisted-1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: unlisted\nVersion: 1.2\n")
    (about / "top_level.txt").write_text("unlisted\n")
    (about / "entry_points.txt").write_text("[neobert_launch.plugins]\nlines = unlisted.deep:rows\n")
    if is_editable:
        (about / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///x"}')
    (site / "unlisted").mkdir()
    (site / "unlisted/__init__.py").write_text("raise AssertionError('imported')\n")
    (site / "unlisted/deep.py").write_text("from unlisted import more\ndef rows(split): ...\n")
    (site / "unlisted/more.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    Path("run.yaml").write_text("profile: cpu-demo\nplugins: {dataset: lines}\n")
    lines = resolve_run(None, ["run.yaml"]).config.plugins.code
    files = ["unlisted/__init__.py", "unlisted/deep.py", "unlisted/more.py"]
    assert [line.partition("  ")[2] or line for line in lines] == (files if is_editable else ["unlisted 1.2"])


def test_a_profile_cannot_name_code(command, monkeypatch):
    Path("profiles").mkdir()
    Path("profiles/mine.yaml").write_text(
        "extends: cpu-demo\nabout: {name: mine, kind: smoke, intent: a profile that names code}\n"
        "plugins: {masking: masking.py:spans}\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(Path("profiles").absolute()))
    found = command("plan", "--profile", "mine")
    assert found.code == 1
    assert "code is named in a run file or an argument, not in a profile" in found.err


def test_code_is_never_taken_from_a_run_directory():
    Path("run.yaml").write_text("profile: cpu-demo\n", encoding="utf-8")
    saved = to_dict(resolve_run(None, ["run.yaml"]).config)
    saved["plugins"] |= {"masking": "masking.py:spans", "code": ["0  masking.py"]}
    begun = RecordedRun("resolved.json", json.loads(json.dumps(saved)), {})
    assert resolve_run(None, ["run.yaml"], begun=begun).config.plugins == RunConfig().plugins


@pytest.mark.parametrize("wait", ["while True: pass", "import time; time.sleep(1e6)"])
def test_a_call_that_does_not_return_is_interrupted_at_its_line(wait, tmp_path):
    file = tmp_path / "stuck.py"
    file.write_text(f"def cost(predictions):\n    try:\n        {wait}\n    except Exception: pass\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    plugin = Plugin(METRICS, "plugins.metrics.0", "cost", "stuck:cost", scope["cost"], frozenset({str(file)}))
    with pytest.raises(PluginError) as error, limit_calls(0.2):
        plugin([])
    assert error.value.message == "plugins.metrics.0 (cost) did not return within 0.2 s"
    assert (error.value.place, error.value.hint) == (f"{file}:3", f"fix {file}:3")
    assert plugin.call_guarded(len, []) == 0
