"""The loss by position in the document: exact over chunks and ranks, and reported for rows that reach it."""

from types import SimpleNamespace

import pytest
import torch

from neobert.config import from_dict
from neobert.objectives.tokens import Score, losses_by_position
from neobert.tasks.metric import LOSSES_BY_POSITION, RANGES
from neobert.tasks.specs import reported_metrics
from neobert.tasks.token_metrics import TokenMetrics
from tests.training.conftest import read_lines, train, write_corpus, write_run

NAMES = [metric.name for metric in LOSSES_BY_POSITION]


def test_names_have_the_ends_of_their_range():
    assert [f"eval/loss_{each}" for each in ("0k_1k", "1k_4k", "4k_8k", "8k_16k", "16k_end")] == NAMES


@pytest.mark.parametrize(("row", "number"), [(1024, 0), (1025, 2), (4096, 2), (4097, 3), (2**15, 5)])
def test_a_run_reports_the_ranges_of_its_rows(row, number):
    names = [metric.name for metric in reported_metrics(from_dict({"dataset": {"max_seq_length": row}}))]
    assert [name for name in names if name in NAMES] == NAMES[:number]


def test_ranks_add_up_to_the_means_of_all_targets():
    torch.manual_seed(0)
    logits, labels = torch.randn(600, 7), torch.randint(0, 7, (600,))
    labels[::3] = -100
    positions = torch.randint(0, 9000, (600, 1))
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none").double()
    ranks = [TokenMetrics(torch.device("cpu"), 8192) for _ in range(2)]
    sums = []
    for rank, part in zip(ranks, torch.arange(600).tensor_split(2), strict=True):
        for some in part.tensor_split(3):
            found = losses_by_position(logits[some], labels[some], positions[some])
            zero = torch.zeros((), dtype=torch.float64)
            rank.add(Score(zero, zero, found), SimpleNamespace(num_targets=len(some)))
        sums.append(rank._by_position)
    world = SimpleNamespace(
        all_reduce_sum=lambda own: own if own.shape == (2,) else sum(sums),
        sum_over_ranks=lambda counts: counts,
    )
    values = ranks[0].values(world)
    for name, first, end in zip(NAMES[:3], RANGES[:3], RANGES[1:4], strict=True):
        chosen = (labels != -100) & (positions[:, 0] >= first) & (positions[:, 0] < end)
        assert values[name] == pytest.approx(losses[chosen].mean().item(), rel=1e-12)
    assert NAMES[3] not in values


def test_an_evaluation_splits_its_loss(tmp_path):
    corpus = write_corpus(tmp_path)
    text = tmp_path / "text.jsonl"
    whole = text.read_text(encoding="utf-8").replace('"}\n{"text": "', " ")
    text.write_text("\n".join([whole] * 6), encoding="utf-8")
    sections = {
        "model": {"max_position_embeddings": None},
        "dataset": {"max_seq_length": 2048, "eval_samples": 1},
        "trainer": {"max_steps": 1, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1,
                    "gradient_accumulation_steps": 1},
    }  # fmt: skip
    run_dir = write_run(tmp_path / "run", corpus, sections)
    assert train(run_dir) == 0
    first = read_lines(run_dir / "metrics.jsonl")[0]
    parts = [first[name] for name in NAMES[:2]]
    assert min(parts) < first["eval/loss"] < max(parts)
    assert NAMES[2] not in first
