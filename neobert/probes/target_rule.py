"""Probe of a causal task's target rule: labels must be the next tokens of the text.

Other probes of a task set their own labels, so they cannot detect a missing shift in the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.probes.layout import Layout
from neobert.training.loop.task import ProbeResult


def target_answers(batch: Microbatch) -> Iterator[ProbeResult]:
    """Yield whether the targets of an unchanged microbatch are the next tokens of their own documents.

    A microbatch without targets yields no answer.
    """
    layout, ids, labels = Layout.from_microbatch(batch), batch.input_ids.flatten(), batch.labels.flatten()
    is_target, one_on, two_on = labels != IGNORED, ids.roll(-1), ids.roll(-2)
    # In a run of equal tokens, or in "a b a", a wrong shift has the right label by chance.
    is_telling = (ids != one_on) & (one_on != two_on) & (ids != two_on)
    inner = is_target & is_telling & (layout.position < layout.length - 2)
    if inner.any():
        yield ProbeResult("the targets in a text", "next", _true_share((labels == one_on)[inner]))
    # The last token of a text has no next one. If all texts begin alike, that label cannot reveal a
    # neighbour.
    starts = ids[layout.is_token & (layout.position == 0)]
    last = is_target & layout.is_token & (layout.position == layout.length - 1)
    last[-1] = False
    if last.any() and (starts != starts[0]).any():
        yield ProbeResult("the targets at the end of a text", "end", _true_share((labels != one_on)[last]))


def _true_share(is_right: Tensor) -> float:
    return float(is_right.float().mean())
