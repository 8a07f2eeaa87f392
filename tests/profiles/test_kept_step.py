"""The microbatches of a step when arguments set other numbers of ranks than the run file."""

from pathlib import Path

import pytest

from neobert.config import ConfigError
from neobert.errors import ProjectError
from profiles.registry import ResolvedRun, resolve_run

STEP = 8
RUN = """\
profile: cpu-demo
trainer: {keep_step: true, gradient_accumulation_steps: 2}
distributed: {nnodes: 4}
"""


@pytest.fixture
def resolve(tmp_path: Path):
    def resolve(*overrides: str, text: str = RUN) -> ResolvedRun:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return resolve_run(None, [path], overrides)

    return resolve


def accumulation(run: ResolvedRun) -> int:
    return run.config.trainer.gradient_accumulation_steps


@pytest.mark.parametrize(
    ("nodes", "processes", "expected"), [(1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (2, 4, 1)]
)
def test_accumulation_follows_the_ranks(resolve, nodes, processes, expected):
    run = resolve(f"distributed.nnodes={nodes}", f"distributed.nproc_per_node={processes}")
    assert accumulation(run) == expected
    assert run.origin("trainer.gradient_accumulation_steps").kind == "override"


def test_a_run_file_states_the_step(resolve):
    assert accumulation(resolve()) == 2
    assert accumulation(resolve("trainer.gradient_accumulation_steps=4", "distributed.nnodes=2")) == 8
    without = RUN.replace("keep_step: true, ", "")
    assert accumulation(resolve("distributed.nnodes=2", text=without)) == 2


@pytest.mark.parametrize(
    ("overrides", "possible"),
    [
        (("distributed.nnodes=3",), "possible numbers of processes: 1, 2, 4, 8"),
        (("distributed.nproc_per_node=3",), "possible numbers of processes: 1, 2, 4, 8"),
        (
            ("distributed.nproc_per_node=2", "distributed.nnodes=3"),
            "possible numbers of nodes of 2 processes: 1, 2, 4",
        ),
    ],
)
def test_ranks_that_do_not_divide_the_step_are_refused(resolve, overrides, possible):
    with pytest.raises(ProjectError, match=f"the {STEP} microbatches of a step") as refusal:
        resolve(*overrides)
    assert (refusal.value.exit_code, refusal.value.hint) == (1, possible)


def test_a_warm_up_by_rank_is_refused_only_if_the_ranks_change(resolve):
    warmup = "trainer.batch_size_warmup_steps=5"
    assert accumulation(resolve(warmup, "distributed.nnodes=4")) == 2
    with pytest.raises(ProjectError, match="counts the microbatches of each rank"):
        resolve(warmup, "distributed.nnodes=2")


def test_a_value_that_is_no_count_is_left_to_the_schema(resolve):
    with pytest.raises(ConfigError, match="expects an integer above 0"):
        resolve("distributed.nnodes=0")
