"""The key that a rule names where several are possible, and limits of the host."""

from dataclasses import replace

import pytest

from tests.validators.judging import FACTS, found, run_of, with_facts
from validators.rules.budget import _size_key

MIXTURE = "dataset.mixture=[{path: a, weight: 1}, {path: b, weight: 2}]"


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ((MIXTURE,), []),
        (("dataset.mixture=[{name: json, weight: 1}]",), ["dataset.mixture"]),
        (("dataset.name=json",), ["dataset.name"]),
    ],
)
def test_the_text_that_is_meant(overrides, keys):
    assert [each.path for each in found("DAT013", run_of(*overrides))] == keys


@pytest.mark.parametrize("key", ["name", "path"])
def test_a_mixture_next_to_another_text(key):
    run = run_of(MIXTURE)
    dataset = replace(run.config.dataset, **{key: "text"})
    [output] = found("DAT013", replace(run, config=replace(run.config, dataset=dataset)))
    assert output.path == f"dataset.{key}"


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        ((MIXTURE,), []),
        ((MIXTURE, "dataset.streaming=true"), ["both set"]),
        (("dataset.mixture=[{weight: 1}, {path: b, weight: 1}]",), ["[0] has no path and no name"]),
        (("dataset.mixture=[{path: a, name: b, weight: 1}]",), ["[0] has a path and a name"]),
        (("dataset.mixture=[{name: a, config: x, weight: 1}, {name: a, config: y, weight: 1}]",), []),
        (
            ("dataset.mixture=[{name: a, config: x, weight: 1}, {name: a, config: x, weight: 1}]",),
            ["2 times"],
        ),
    ],
)
def test_a_mixture_that_cannot_be_drawn(overrides, messages):
    output = [each.message for each in found("DAT018", run_of(*overrides))]
    assert len(output) == len(messages)
    assert all(words in message for words, message in zip(messages, output, strict=True))


@pytest.mark.parametrize(
    ("section", "name"),
    [("scheduler", "warmup"), ("scheduler", "decay"), ("trainer", "sequence_length_warmup")],
)
def test_steps_next_to_a_percentage_are_idle(section, name):
    steps, percent = f"{section}.{name}_steps", f"{section}.{name}_percent"
    (one,) = found("CFG013", run_of(f"{section}={{{name}_steps: 300, {name}_percent: 6}}"))
    assert (one.path, f"{percent} is set and takes precedence" in one.message) == (steps, True)
    assert found("CFG013", run_of(f"{steps}=300", f"{percent}=6")) == []


def test_a_key_that_the_task_does_not_read_is_named_once():
    """Enabling it, such as by packing, would not make the task read it."""
    run = run_of("trainer.sequence_length_warmup_steps=9", "trainer.cuda_graphs=true", profile="cpu-classify")
    output = {each.path: each.message for each in found("CFG013", run)}
    assert len(output) == len(found("CFG013", run)) == 2
    assert all("in task classification" in message for message in output.values())


COMPILED = ("trainer.cuda_graphs=true", "trainer.torch_compile=true", "datacollator.pack_sequences=true")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("trainer.cuda_graphs=true", None),
        ("trainer.torch_compile=false", None),
        ("trainer.torch_compile_backend=aot_eager", "backend aot_eager does not record CUDA graphs"),
        ("datacollator.pack_sequences=false", "padded rows have varying shapes"),
        ("distributed.nproc_per_node=2", "a step of 2 ranks cannot be recorded as one graph"),
        ("distributed.nnodes=3", "a step of 3 ranks cannot be recorded as one graph"),
    ],
)
def test_a_step_that_is_not_one_graph_has_no_cuda_graphs(change, reason):
    output = [
        each.message for each in found("CFG013", run_of(*COMPILED, change)) if "cuda_graphs" in each.path
    ]
    assert len(output) == (reason is not None)
    assert all(reason in message for message in output if reason is not None)


@pytest.mark.parametrize(
    ("batches", "samples", "split", "key"),
    [
        (None, None, 0.5, "dataset.validation_split"),
        (None, 9, None, "dataset.eval_samples"),
        (None, 9, 0.5, "dataset.eval_samples"),
        (None, None, None, "dataset.eval_samples"),
        (8, None, 0.5, "trainer.eval_max_batches"),
    ],
)
def test_the_size_of_an_evaluation(batches, samples, split, key):
    config = run_of().config
    dataset = replace(config.dataset, eval_samples=samples, validation_split=split)
    trainer = replace(config.trainer, eval_max_batches=batches)
    assert _size_key(replace(config, dataset=dataset, trainer=trainer)) == key


@pytest.mark.parametrize(
    ("cuda", "driver", "count"),
    [
        ("13.0", "580.65.05", 1),
        ("13.0", "580.65.06", 0),
        ("12.8", "525.60.12", 1),
        ("12.8", "525.60.13", 0),
        ("11.8", "450.80.01", 1),
        ("11.8", "450.80.02", 0),
        ("10.2", "400.00.00", 0),
    ],
)
def test_the_oldest_driver_of_each_cuda(cuda, driver, count):
    assert FACTS.gpus is not None
    gpus = tuple(replace(gpu, driver_version=driver) for gpu in FACTS.gpus)
    facts = replace(with_facts("software", torch_cuda=cuda), gpus=gpus)
    assert len(found("HST011", run_of(), facts)) == count


@pytest.mark.parametrize(("year", "count"), [("2023", 1), ("2024", 0), ("2025", 0)])
def test_the_first_plausible_year(year, count):
    facts = replace(with_facts("host", clock_behind_s=0.0), recorded_utc=f"{year}-06-01T00:00:00+00:00")
    assert len(found("HST012", run_of(), facts)) == count


@pytest.mark.parametrize(("seconds", "count"), [(9.95, 0), (10.0, 0), (10.01, 1)])
def test_a_missing_rank_is_noticed_in_time(seconds, count):
    facts = with_facts("distributed", drill_s=seconds)
    assert len(found("DST004", run_of("distributed.nproc_per_node=2"), facts)) == count


@pytest.mark.parametrize(("floor", "count"), [(0.0, 0), (0.1, 0), (0.1005, 1), (0.5, 1), (1.0, 0)])
def test_the_highest_floor_of_a_decay(floor, count):
    assert len(found("SCH006", run_of(f"scheduler.final_lr_ratio={floor}"))) == count


@pytest.mark.parametrize(
    ("sha", "base"), [("0123456789abcdef", "0123456789ab"), ("", "a repository without commits")]
)
def test_uncommitted_changes_name_their_base(sha, base):
    facts = with_facts("git", is_repository=True, is_dirty=True, diff_saved=False, sha=sha)
    [finding] = found("HST002", run_of(), facts)
    assert finding.message == f"uncommitted changes on {base} are not stored"


def test_a_section_of_low_precision_without_its_switch_is_idle():
    """It reads as if it were on, also with the values that are the default; one that is off is meant."""
    (one,) = found("CFG013", run_of("torchao.recipe=float8_rowwise", "torchao.filter_fqns=[wo]"))
    assert one.message == "section torchao has no effect: torchao.enable is not set"
    for switch in ("true", "false"):
        assert found("CFG013", run_of(f"torchao.enable={switch}", "torchao.filter_fqns=[wo]")) == []
