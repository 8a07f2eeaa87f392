"""Ranking metrics with graded relevance, as trec_eval defines them.

Shapes: K ranked documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

METRICS = ("ndcg@10", "mrr@10", "map@100", "recall@100")
DEPTH = 100


def mean_metrics(
    rankings: Mapping[str, Sequence[str]], relevance: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Return the mean metrics over all queries. `rankings` maps a query to its documents, best first."""
    each = [query_metrics(ranking, relevance[query]) for query, ranking in rankings.items()]
    return {name: fmean(one[name] for one in each) for name in METRICS}


def query_metrics(ranking: Sequence[str], relevance: Mapping[str, int]) -> dict[str, float]:
    """Return the metrics of one query. `relevance` contains at least one document, all above 0."""
    gains = [relevance.get(document, 0) for document in ranking]
    is_hit = [gain > 0 for gain in gains]
    ideal = sorted(relevance.values(), reverse=True)
    first = next((rank for rank, hit in enumerate(is_hit[:10], 1) if hit), None)
    precisions = [sum(is_hit[:rank]) / rank for rank, hit in enumerate(is_hit[:DEPTH], 1) if hit]
    return {
        "ndcg@10": _dcg(gains[:10]) / _dcg(ideal[:10]),
        "mrr@10": 0.0 if first is None else 1 / first,
        "map@100": sum(precisions) / len(relevance),
        "recall@100": sum(is_hit[:DEPTH]) / len(relevance),
    }


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
