"""The file for Prometheus: whole at any moment, in Prometheus' grammar, with units in the names."""

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import from_dict, to_dict
from neobert.trackers.background import close_trackers, open_trackers
from neobert.trackers.prometheus import PROMETHEUS, format_exposition, metric_family, textfile_path
from neobert.trackers.tracker import TrackedRun

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z_]+="(?:\\[\\n"]|[^\\"\n])*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:\\[\\n"]|[^\\"\n])*)"')
ROW = {
    "train/loss": 1.5, "train/tokens_per_sec": 1000.0, "train/tokens_total": 12345, "time/step_ms": 250.0,
    "perf/mfu": 0.4, "perf/data_wait_share": 0.01, "memory/peak_percent": 75.0, "eval/accuracy": 0.5,
    "data/share/wiki": 0.25, "data/share/books": 0.75,
}  # fmt: skip


def parse(text):
    """Return {(name, labels): value}, refusing what Prometheus would."""
    assert text.endswith("\n")
    found, typed = {}, []
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        assert name == typed[-1], "a family is one group, after its type"
        key = name, frozenset((each[1], unescaped(each[2])) for each in LABEL.finditer(labels))
        assert key not in found
        found[key] = float(value)
    assert len(typed) == len(set(typed))
    return found


def unescaped(text):
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def start(run_dir, **sections):
    run_dir.mkdir(exist_ok=True)
    settings = to_dict(from_dict(sections))
    run = TrackedRun(run_dir=run_dir, identity="0" * 16, first_step=0, settings=settings)
    return PROMETHEUS.start(run)


def values_of(path):
    return {name: value for (name, _), value in parse(path.read_text(encoding="utf-8")).items()}


def test_values_have_names_with_units_and_base_units(tmp_path):
    run_dir = tmp_path / "demo"
    session = start(run_dir)
    session.log(ROW, 10)
    session.log({"train/loss": float("nan"), "eval/loss": 2.0}, 20)
    found = parse((run_dir / "metrics.prom").read_text(encoding="utf-8"))
    values = {name: value for (name, _), value in found.items()}
    assert values["neobert_time_step_seconds"] == 0.25
    assert values["neobert_train_tokens_per_second"] == 1000
    assert values["neobert_train_tokens_total"] == 12345
    assert values["neobert_perf_mfu_ratio"] == 0.4
    assert values["neobert_perf_data_wait_ratio"] == 0.01
    assert values["neobert_memory_peak_ratio"] == 0.75
    assert values["neobert_eval_accuracy_ratio"] == 0.5
    assert values["neobert_eval_loss"] == 2.0
    assert values["neobert_train_loss"] != values["neobert_train_loss"], "NaN is what has to be seen"
    assert (values["neobert_step"], values["neobert_training"]) == (20, 1)
    corpora = {dict(labels)["corpus"]: value for (name, labels), value in found.items() if "corpus" in name}
    assert corpora == {"wiki": 0.25, "books": 0.75}
    assert {dict(labels)["run"] for _, labels in found} == {"demo"}
    session.close()
    assert values_of(run_dir / "metrics.prom")["neobert_training"] == 0


def test_a_value_that_is_not_finite_replaces_the_one_before(tmp_path):
    settings = to_dict(from_dict({}))
    run = TrackedRun(run_dir=tmp_path, identity="0" * 16, first_step=0, settings=settings)
    (tracker,) = open_trackers(["prometheus"], run)
    tracker.log({"step": 10, "train/loss": 1.5, "eval/loss": 2.0, "perf/mfu": None})
    tracker.log({"step": 20, "train/loss": 1.4, "eval/loss": None, "perf/mfu": None})
    close_trackers([tracker])
    values = values_of(tmp_path / "metrics.prom")
    assert values["neobert_train_loss"] == 1.4
    assert values["neobert_eval_loss"] != values["neobert_eval_loss"], "not 2.0, which is of step 10"
    assert "neobert_perf_mfu_ratio" not in values, "never measured"


def test_the_file_may_be_in_the_folder_of_the_collector(tmp_path):
    path = tmp_path / "collector" / "demo.prom"
    path.parent.mkdir()
    start(tmp_path / "run", prometheus={"textfile": str(path)}).log(ROW, 1)
    assert values_of(path)["neobert_step"] == 1
    assert not (tmp_path / "run" / "metrics.prom").exists()
    assert PROMETHEUS.folder(tmp_path / "run", {"prometheus": {"textfile": str(path)}}) == path.parent
    assert textfile_path(tmp_path, {"prometheus": {"textfile": None}}) == tmp_path / "metrics.prom"
    assert PROMETHEUS.is_installed


names = st.text(min_size=1, max_size=12).map(lambda text: f"train/{text}")


@given(
    st.dictionaries(names | st.sampled_from(sorted(ROW)), st.floats() | st.integers(0, 10**12), max_size=6),
    st.dictionaries(st.sampled_from(["run", "run_id"]), st.text(), min_size=1),
)
def test_any_names_and_labels_give_a_file_that_prometheus_reads(values, labels):
    text = "".join(f"{line}\n" for line in format_exposition(values, labels))
    for _, found in parse(text) if text else ():
        assert {name: text for name, text in found if name != "corpus"} == labels


def test_a_reader_never_sees_a_part_of_the_file(tmp_path):
    session = start(tmp_path)
    is_over = threading.Event()

    def write():
        for step in range(300):
            session.log(ROW, step)
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not is_over.is_set():
        assert "neobert_last_update_timestamp_seconds" in values_of(tmp_path / "metrics.prom")
    writer.join()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train/max_attention_logit", ("neobert_train_max_attention_logit", "gauge", 1.0)),
        ("memory/alloc_retries", ("neobert_memory_alloc_retries_total", "counter", 1.0)),
        ("time/forward_p95_ms", ("neobert_time_forward_p95_seconds", "gauge", 1e-3)),
    ],
)
def test_families(name, expected):
    assert metric_family(name) == expected
