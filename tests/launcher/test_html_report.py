"""`report`: the page of a run, of damaged runs, and of runs that try to break out of it."""

import base64
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.htmlreport import reader
from launcher.htmlreport.overview import heading_html, launches_html, results_html
from launcher.htmlreport.page import render_page
from launcher.htmlreport.reader import ONE_RANK, Decimator, read_history
from launcher.htmlreport.run_record import read_run
from launcher.rundir.directory import start_since_boot_s

BREAKOUT = '</script><script>document.title="broken"</script><img src=x onerror=alert(1)>'
CONTROLS = "a\x1b[31mb\x00c\u202ed\ud800"


class Page(HTMLParser):
    """Elements and attributes of a page, and the content of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.contents: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.contents:
            self.contents[self._open].append(data)
        else:
            self.text += data

    @property
    def data(self) -> Any:
        return json.loads(self.contents["script"][0])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of 40 steps: evaluations, a restart from step 20, one finding, one GPU, two ranks."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_rows(folder, [row(step) for step in range(41)])
    for rank in range(2):
        beats = [beat(step, rank) for step in range(0, 41, 5)]
        (folder / f"heartbeat_rank{rank}.jsonl").write_text(
            "".join(f"{json.dumps(each)}\n" for each in beats)
        )
    origin = {"kind": "override", "file": "<command line>", "line": 1, "column": 1}
    restart = {
        "ts_utc": "2026-01-01T00:10:00+00:00",
        "why": "rank 0 was killed",
        "step": 26,
        "from": "checkpoint 20",
    }
    launch = {"argv": ["x", "train"], "overrides": ["trainer.max_steps=40"], "restarts": [restart]}
    finding = {
        "code": "CKP001",
        "name": "no-save-cadence",
        "severity": "warn",
        "message": "no save",
        "hint": "save",
        "path": "trainer",
    }
    left_out = {
        "kind": ".csv",
        "num_files": 2,
        "example": "a.csv",
        "reason": "no column",
        "hint": "name a column",
    }
    notes = {"source": "notes", "formats": {".txt": 3}, "documents": 70, "left_out": [left_out]}
    gpu = {"index": 0, "name": "NVIDIA H200", "memory_total_mib": 143771}
    write(
        folder,
        resolved={"task": "classification", "trainer": {"max_steps": 40}, "guard": {"price_per_gpu_hour": 2}},
        provenance={"trainer.max_steps": origin},
        manifest={**launch, "earlier": [], "profile": "a100-prod", "packages": {"torch": "2.11"}},
        preflight={"verdict": "pass", "findings": [finding], "checks": [{"id": "CKP001", "status": "warn"}]},
        facts={"gpus": [gpu], "text": [notes]},
        outcome={
            "status": "failed",
            "exit_code": 93,
            "step": 40,
            "message": "loss spike at step 41",
            "code": "SPK001",
            "hint": "lower optimizer.lr",
        },
    )
    return folder


def row(step: int) -> dict[str, Any]:
    line: dict[str, Any] = {"step": step, "train/loss": 9 - step / 10, "train/tokens_total": 100 * step}
    line |= {"time/step_ms": 90_000.0, "train/tokens_per_sec": 1.5, "perf/mfu": None}
    line["perf/host_bound_share"] = 0.0
    return line | ({"eval/loss": 8.0, "eval/mcc": step / 100} if step % 20 == 0 else {})


def beat(step: int, rank: int) -> dict[str, Any]:
    reading = {
        "gpu_mem_reserved_gib": 40.0 + rank,
        "host_rss_mib": 2048,
        "last_checkpoint_step": step // 10 * 10,
    }
    phase = "start" if step == 20 else "train"
    return {"step": step, "phase": phase, "ts_utc": "2026-01-01T00:10:01+00:00", **reading}


def write(folder: Path, **files: Any) -> None:
    """Write files of JSON by their names."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    lines = "".join(f"{json.dumps(each)}\n" for each in rows)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")


@pytest.mark.parametrize(
    ("hostname", "pid", "shown", "of_launch"),
    [
        (socket.gethostname(), os.getpid(), "running, last phase: ", "running"),
        (socket.gethostname(), 0, "died, last phase: ", "no outcome written (killed)"),
        ("elsewhere", 1, "no outcome, last phase: ", "no outcome written (killed, or still running)"),
    ],
    ids=["running", "died", "elsewhere"],
)
def test_a_run_without_an_outcome_is_running_or_not(hostname, pid, shown, of_launch, run_dir):
    (run_dir / "outcome.json").unlink()
    started_s = start_since_boot_s(psutil.Process(pid)) if pid else 0
    trainer = {"hostname": hostname, "trainer_pid": pid, "trainer_started_after_boot_s": started_s}
    write(run_dir, manifest={"argv": ["x", "train"], **trainer})
    run = read_run(run_dir)
    assert shown in heading_html(run)
    assert f">{of_launch}</td>" in launches_html(run)


def test_the_page_shows_the_run(command, run_dir):
    answer = command("report", run_dir)
    assert (answer.code, answer.err) == (0, "")
    assert Path(answer.out.strip()) == run_dir / "report.html"
    page = Page((run_dir / "report.html").read_text(encoding="utf-8"))
    for shown in (
        "failed (exit 93): loss spike at step 41 [SPK001]; hint: lower optimizer.lr",
        "40 of 40", "2 GPU-hours = 4.00", "2 (1 restart)", "CKP001",
        "NVIDIA H200, 140.4 GiB", "no-save-cadence", "rank 0 was killed", "torch",
        "command line: trainer.max_steps=40", "3 x .txt", "2 x .csv (a.csv: no column)",
        "hint: name a column",
    ):  # fmt: skip
        assert shown in page.text, shown
    (run,) = page.data["runs"]
    titles = [panel["title"] for panel in page.data["panels"]]
    assert titles[:2] == ["Loss", "Evaluation: mcc"]
    waited = "Share of steps that waited for the host"
    memory = {"GPU memory reserved, per rank", "Host memory (RSS), per rank"}
    assert {"Throughput", "Step time", waited, *memory} <= set(titles)
    assert "MFU" not in titles
    assert run["series"]["memory/gpu_rank1"]["values"][0] == 41.0
    assert run["clock"]["tokens"][-1] == 4000
    assert run["clock"]["time"][-1] == 40 * 90.0
    marks = {(event["kind"], event["step"]) for event in run["events"]}
    assert {("evaluation", 20), ("checkpoint", 10), ("resume", 20), ("failure", 26), ("failure", 40)} <= marks


@pytest.mark.parametrize("has_evaluation", [True, False])
def test_the_time_of_a_continued_run_excludes_the_run_before(run_dir, *, has_evaluation):
    write(run_dir, continued={"step": 1000, "tokens_total": 100_000})
    begun = {"step": 1000, "eval/loss": 8.0, "time/evaluation_ms": 5000.0}
    write_rows(run_dir, [*([begun] if has_evaluation else []), row(1010), row(1020)])
    run = read_run(run_dir)
    points = list(run.history.clock.points.values())
    if has_evaluation:
        assert points == [(1000, 100_000, 5.0), (1010, 101_000, 905.0), (1020, 102_000, 1805.0)]
    else:
        assert points == [(1010, 101_000, 900.0), (1020, 102_000, 1800.0)]
    assert "<dt>mean throughput</dt><dd>1.11 tokens/s</dd>" in heading_html(run)


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        ("fail", "launched although checks failed: why"),
        ("pass", "launched with --unguarded, and all required checks passed: why"),
    ],
)
def test_an_unguarded_launch_is_shown_with_its_verdict(run_dir, verdict, shown):
    write(run_dir, manifest={"argv": ["x", "train"], "unguarded": "why"})
    write(run_dir, preflight={"verdict": verdict})
    assert f">{shown}<" in heading_html(read_run(run_dir))


def test_nothing_is_loaded_and_only_the_own_script_may_run(command, run_dir):
    command("report", run_dir)
    page = Page((run_dir / "report.html").read_text(encoding="utf-8"))
    assert not {"src", "href", "style", "action"} & set(page.attributes)
    assert not [name for name in page.attributes if name.startswith("on")]
    (policy,) = [each for each in page.attributes["content"] if "default-src" in each]
    assert policy.startswith("default-src 'none'; ")
    for kind, content in (("script", page.contents["script"][1]), ("style", page.contents["style"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_two_runs_share_the_charts(command, run_dir):
    other = run_dir.with_name("other")
    shutil.copytree(run_dir, other)
    trainer = {"max_steps": 50, "output_dir": "other", "resume_from_checkpoint": "auto"}
    write(other, resolved={"task": "classification", "trainer": trainer})
    assert command("report", run_dir, other, "--output", "both.html").code == 0
    page = Page(Path("both.html").read_text(encoding="utf-8"))
    assert [run["name"] for run in page.data["runs"]] == ["run", "other"]
    assert "trainer.max_steps" in page.text
    assert "guard.price_per_gpu_hour" in page.text  # set in one of them only
    assert "not set" in page.text
    differing = page.text.partition("Config differences")[2].partition("Results")[0]
    assert "trainer.max_steps" in differing
    assert "trainer.resume_from_checkpoint" not in differing


def samples_of(word: str, num_evaluations: int) -> dict[str, Any]:
    guesses = [[[word, 0.25], ["b", 0.5]]]
    evaluations = [{"step": step, "guesses": guesses} for step in range(num_evaluations)]
    return {"texts": [{"before": "x", "word": word, "after": "y"}], "evaluations": evaluations}


def test_the_page_shows_guesses_at_masked_words(command, run_dir):
    write(run_dir, samples=samples_of(BREAKOUT, 60))
    command("report", run_dir)
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    shown = page.text.partition("Masked words")[2].partition("Preflight")[0]
    assert f"[{BREAKOUT}]" in shown
    assert "25%" in shown
    assert page.elements.count("script") == 2
    assert text.count('class="guess pass"') == 13
    assert ">59</td>" in text
    write(run_dir, samples={"texts": 1})
    command("report", run_dir)
    assert "Masked words" not in (run_dir / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("accuracy", "is_shown"), [([0.18, 0.1, 0.05, 0.04, 0.07], True), ([0.1, 0.18, 0.05, 0.04, 0.07], False)]
)
def test_a_best_accuracy_in_the_first_steps_is_explained(run_dir, accuracy, *, is_shown):
    write(run_dir, resolved={"task": "pretrain"})
    write_rows(run_dir, [{"step": 10 * at, "eval/accuracy": value} for at, value in enumerate(accuracy)])
    assert ("accuracy falls before it rises" in results_html(read_run(run_dir))) is is_shown


def test_the_folder_of_a_sweep_is_compared(command, run_dir):
    sweep = run_dir.with_name("sweep")
    for number in range(34):
        point = sweep / f"lr={number}"
        shutil.copytree(run_dir, point)
        write(point, resolved={"task": "classification", "optimizer": {"lr": number}})
        write_rows(point, [{"step": 20, "train/loss": 3.0, "eval/loss": float(99 - number)}, row(30)])
    (sweep / "sweep.json").write_text("{}", encoding="utf-8")
    answer = command("report", sweep)
    assert (answer.code, Path(answer.out.strip())) == (0, sweep / "compare.html")
    assert answer.err == "showing the 32 of 34 runs with the lowest evaluation loss\n"
    page = Page((sweep / "compare.html").read_text(encoding="utf-8"))
    assert [run["name"] for run in page.data["runs"]] == [f"lr={number}" for number in range(33, 1, -1)]
    assert all(len(panel["lines"]) == 1 for panel in page.data["panels"])
    assert [panel["title"] for panel in page.data["panels"]][:2] == ["Loss: training", "Loss: evaluation"]
    assert "optimizer.lr" in page.text.partition("Config differences")[2]
    points = [sweep / "lr=1", sweep / "lr=2", sweep / "lr=3", sweep / "sweep.json"]
    assert command("report", *points).out.strip() == str(sweep / "lr=1" / "compare.html")


@pytest.mark.parametrize("name", ["constructor", "__proto__", "memory/gpu_rankX", "data/share/", ""])
def test_a_metric_may_have_any_name(run_dir, name):
    write_rows(run_dir, [{"step": step, name: step} for step in range(5)])
    page = Page(render_page([read_run(run_dir)]))
    assert page.data["runs"][0]["series"][name]["values"] == [0, 1, 2, 3, 4]


def hostile(value: str) -> list[dict[str, Any]]:
    return [{"step": step, value: step, "train/loss": 1.0} for step in range(9)]


@pytest.mark.parametrize("value", [BREAKOUT, CONTROLS, "<!--<script>", "${title}", "a" * 10_000])
def test_text_from_a_run_stays_text(run_dir, value):
    expected = Page(render_page([read_run(run_dir)]))
    write_rows(run_dir, hostile(value))
    for name in ("resolved", "provenance", "manifest", "preflight", "facts", "outcome"):
        write(run_dir, **{name: poisoned(json.loads((run_dir / f"{name}.json").read_text()), value)})
    folder = run_dir.rename(
        run_dir.with_name(value.replace("/", "").replace("\0", "")[:60].encode(errors="replace").decode())
    )
    text = render_page([read_run(folder), read_run(folder)])
    page = Page(text)
    assert {"script": page.elements.count("script"), "img": page.elements.count("img")} == {
        "script": 2,
        "img": 0,
    }
    assert page.contents["script"][1] == expected.contents["script"][1]
    assert value in page.data["runs"][0]["series"]
    assert not [name for name in page.attributes if name.startswith("on")]
    assert not any(char in text for char in "\x00\x1b\u202e\ud800")


def poisoned(content: Any, value: str) -> Any:
    """Return the content with a value after every text, and as a further key and entry."""
    if isinstance(content, dict):
        return {**{name: poisoned(each, value) for name, each in content.items()}, value: value}
    if isinstance(content, list):
        return [*(poisoned(each, value) for each in content), value]
    return f"{content}{value}" if isinstance(content, str) else content


def test_values_that_are_not_numbers_leave_gaps(run_dir):
    lines = [
        '{"step": 1, "train/loss": NaN}',
        '{"step": 2, "train/loss": -Infinity}',
        '{"step": 3, "train/loss": 2.5}',
    ]
    lines += [
        f'{{"step": 4, "train/loss": 1{"0" * 400}}}',
        '{"step": 5, "train/loss": true}',
        '{"step": 6, "train/loss": "1"}',
    ]
    lines += [
        "[1, 2",
        "null",
        "7",
        f'{{"step": 9{"9" * 5000}}}',
        '{"step": -1}',
        "[" * 100_000,
        '{"step": 10, "train/lo',
    ]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    history = read_history(run_dir, ONE_RANK)
    assert history.series["train/loss"].points == [(3, 2.5)]
    page = Page(render_page([read_run(run_dir)]))
    assert "damaged lines not shown" in page.text
    assert page.data["runs"][0]["series"]["train/loss"] == {"steps": [3], "values": [2.5]}


@pytest.mark.parametrize(
    ("launches", "cost"),
    [
        ([(0, 1), (20, 2)], "1.5 GPU-hours = 3.00"),
        ([(0, 4), (20, 1)], "2.5 GPU-hours = 5.00"),
        ([(0, 1), (20, 2), (10, 4)], "3.25 GPU-hours = 6.50"),  # steps from 11 were repeated
        ([(0, 1), (20, 9), (20, 2)], "1.5 GPU-hours = 3.00"),  # the second one trained nothing
        ([(None, None), (20, 1)], "1.5 GPU-hours = 3.00"),  # an earlier version recorded none: two heartbeats
        ([(0, 1)], "1 GPU-hours = 2.00"),
        ([(-1, 5), (20, "4")], "2 GPU-hours = 4.00"),
    ],
)
def test_each_launch_is_priced_with_its_own_ranks(run_dir, launches, cost):
    for scale in (1, 100):  # one row for each pixel of a chart, and several
        write_rows(run_dir, [{**row(step), "time/step_ms": 9e4 / scale} for step in range(40 * scale + 1)])
        entries = [
            {"first_step": None if step is None else step * scale, "num_ranks": ranks}
            for step, ranks in launches
        ]
        write(run_dir, manifest={**entries[-1], "earlier": entries[:-1]})
        assert f"<dd>{cost}</dd>" in heading_html(read_run(run_dir))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"a": ' * 500 + "1" + "}" * 500, '{"findings": 1, "verdict": 2, "earlier": [1]}'],
)
def test_damaged_files_are_left_out(command, run_dir, content):
    for path in run_dir.iterdir():
        path.write_text(content, encoding="utf-8")
    assert command("report", run_dir).code == 0


def test_a_run_that_has_only_begun_has_a_page(command, tmp_path):
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", manifest={})
    command("report", "run").passed()
    assert "metrics.jsonl has no metrics yet" in Path("run/report.html").read_text(encoding="utf-8")


def test_links_and_pipes_are_not_read(command, run_dir, tmp_path):
    (tmp_path / "secret.jsonl").write_text(
        '{"step": 1, "secret/metric": 1}\n{"step": 2, "secret/metric": 2}\n'
    )
    for name, make in {
        "metrics.jsonl": lambda path: path.symlink_to(tmp_path / "secret.jsonl"),
        "heartbeat_rank0.jsonl": os.mkfifo,
        "preflight.json": lambda path: path.symlink_to("/dev/zero"),
        "facts.json": Path.mkdir,
    }.items():
        (run_dir / name).unlink()
        make(run_dir / name)
    assert command("report", run_dir).code == 0
    assert "secret" not in (run_dir / "report.html").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_named_before_the_run_is_read(command, run_dir, monkeypatch):
    monkeypatch.setattr("launcher.commands.report.read_run", lambda folder: pytest.fail("read"))
    command("report", run_dir, "--output", "absent/page.html").refused(1, "cannot be written")


NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.integers(-5, 5), st.none(), st.just(float("nan")))


@given(st.lists(st.tuples(st.integers(0, 300), NUMBERS), max_size=200), st.integers(1, 40))
def test_each_pixel_keeps_its_extremes(points, pixels):
    last = max((step for step, _ in points), default=0)
    decimator = Decimator(0, last, pixels)
    for step, value in points:
        decimator.add(step, {"step": step, "x": value})
    numbers = [(step, value) for step, value in points if reader.is_number(value)]
    by_pixel: dict[int, list[float]] = {}
    for step, value in numbers:
        by_pixel.setdefault(step * pixels // (last + 1), []).append(value)
    assert ("x" in decimator.series) == bool(numbers)
    for series in decimator.series.values():
        assert series.points == sorted(series.points)
        assert set(series.points) <= set(numbers)
        kept = {pixel: (low, high) for pixel, ((_, low), (_, high)) in series.pixels.items()}
        assert kept == {pixel: (min(values), max(values)) for pixel, values in by_pixel.items()}
        assert (series.first, series.last) == (min(numbers), max(numbers))


def test_memory_does_not_grow_with_the_history(run_dir):
    peaks = []
    for num_rows in (2_000, 8_000):
        write_rows(run_dir, [row(step) for step in range(num_rows)])
        tracemalloc.start()
        history = read_history(run_dir, ONE_RANK)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert history.num_rows == num_rows
        assert len(history.series["train/loss"].points) <= 2 * reader.PIXELS
    assert peaks[1] < 2 * peaks[0]


NAMES = ("train/loss", "eval/loss", "time/step_ms", "time/evaluation_ms", "train/tokens_total", "own/name")
EXTREMES = st.one_of(st.floats(), st.integers(-(2**64), 2**64), st.sampled_from([1.7e308, -1.7e308, 5e-324]))


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), EXTREMES), max_size=8))
@example([{"time/step_ms": 1.7e308}, {"time/step_ms": 1.7e308}])
@example([{"train/loss": 1.7e308}] * 3)
def test_any_number_has_a_page(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("run")
    write_rows(folder, [{"step": step, **values} for step, values in enumerate(rows)])
    (run,) = Page(render_page([read_run(folder)])).data["runs"]  # json.dumps refuses NaN and infinities
    for line in run["series"].values():
        assert sorted(line["steps"]) == line["steps"]
        assert len(line["steps"]) == len(line["values"])


def browser_shows(page: str, folder: Path, width: int) -> tuple[str, str]:
    """Return the elements of a page after its script has run, and what the browser reports."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    flags += ["--disable-background-networking", f"--user-data-dir={folder / 'browser'}"]
    flags += [f"--window-size={width},900", "--dump-dom", "--enable-logging=stderr"]
    command = ["chromium", *flags, (folder / "page.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return shown.stdout, shown.stderr


CURVES: dict[str, list[float]] = {
    "one": [6.0],
    "equal": [3.0] * 5,
    "zero": [0.0, 0.0],
    "negative": [-5.0, -4.0, -300.0],
    "close": [6.0001, 6.0002, 6.0003],
    "far": [1e12, 1e12 + 1e7],
    "stamps": [1.7e18, 1.7e18 + 1e13],
    "largest": [1.7e308, -1.7e308, 1.0],
    "smallest": [5e-324, 1e-323],
    "tiny": [-1e-9, 3e-9],
    "wide": [1e-9, 1e9],
}


@pytest.mark.child
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_every_axis_can_be_read(run_dir, tmp_path):
    rows: dict[int, dict[str, Any]] = {}
    for name, values in CURVES.items():
        for step, value in enumerate(values):
            rows.setdefault(step, {"step": step})[f"own/{name}"] = value
    write_rows(run_dir, list(rows.values()))
    shown, reported = browser_shows(render_page([read_run(run_dir)]), tmp_path, 390)
    assert "CONSOLE" not in reported
    charts = re.findall(r'<svg width.*?aria-label="(?:own/)?(\w*)[;"].*?</svg>', shown, re.DOTALL)
    assert set(CURVES) - {"one", "equal", "zero"} <= set(charts)  # those do not change
    for chart in re.findall(r'<svg width="\d+" height="230".*?</svg>', shown, re.DOTALL):
        assert not re.search(r'(?:NaN|Infinity|undefined)[^"<]*"', chart), chart[:300]
        ticks = re.findall(r'y="([^"]*)" text-anchor="end">([^<]*)<', chart)
        texts = [text for _, text in ticks]
        assert 2 <= len(texts) == len(set(texts)) <= 10, chart[:300]
        assert max(map(len, texts)) <= 11, texts
        edges = re.findall(r'class="tick" x="([^"]*)" y="[^"]*" text-anchor="end"', chart)
        assert min(map(float, edges)) >= 7 * max(map(len, texts)), texts  # the longest fits
        steps = [float(text) for text in re.findall(r'text-anchor="middle">([\d.]+)<', chart)]
        assert len(steps) >= 2, chart[:300]
        assert all(step.is_integer() for step in steps)
        points = " ".join(re.findall(r'points="([^"]*)"', chart)).split()
        assert all(0 <= float(point.split(",")[1]) <= 230 for point in points)


@pytest.mark.child
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_draws_ten_runs_in_each_chart(run_dir, tmp_path):
    shown, reported = browser_shows(render_page([read_run(run_dir)] * 10), tmp_path, 1280)
    (loss,) = re.findall(r'<svg [^>]*aria-label="Loss: evaluation;.*?</svg>', shown, re.DOTALL)
    styles = re.findall(r'<polyline class="line (c\d d\d)"', loss)
    assert len(set(styles)) == 10
    assert {"c7 d0", "c0 d1", "c1 d1"} <= set(styles)
    assert shown.count('class="swatch"') == 10, "one legend for all charts"
    assert "CONSOLE" not in reported


@pytest.mark.child
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_draws_the_charts(run_dir, tmp_path, width):
    write_rows(run_dir, [{**row(step), BREAKOUT: step, "constructor": step} for step in range(2000)])
    shown, reported = browser_shows(render_page([read_run(run_dir), read_run(run_dir)]), tmp_path, width)
    page = Page(shown)
    assert page.elements.count("polyline") >= 2 * 6
    assert page.elements.count("img") == 0
    assert "<title>broken" not in shown
    assert "CONSOLE" not in reported
