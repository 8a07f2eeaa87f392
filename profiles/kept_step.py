"""Key `trainer.keep_step`: keep the microbatches per step when arguments change the number of ranks.

All processes are data-parallel ranks, each of which reads `gradient_accumulation_steps` microbatches in a
step. Microbatch and sample do not depend on the rank that reads them, so on other ranks the accumulation
changes instead of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod

from neobert.config.canonical import flatten, to_dict
from neobert.config.document import Document
from neobert.config.layers import lay_over
from neobert.config.nodes import find
from neobert.config.overrides import Override, override_layer
from neobert.config.resolution import EMPTY
from neobert.config.schema import RunConfig
from neobert.config.variables import references_in, substitute
from neobert.errors import ProjectError
from neobert.plurals import counted, listed
from neobert.runfiles.resume_policy import FACTORS

KEEPS, WARMUP = "trainer.keep_step", "trainer.batch_size_warmup_steps"
ACCUMULATION, *RANKS = FACTORS
OPTIONS = {"distributed.nproc_per_node": "--nproc-per-node", "distributed.nnodes": "--nnodes"}
DEFAULTS = flatten(to_dict(RunConfig()))


def accumulation_for(step: int, nproc_per_node: int, nnodes: int) -> int:
    """Return the number of microbatches of each rank if all ranks share `step` microbatches in a step.

    Raises ProjectError with the possible numbers of ranks if the ranks do not divide `step`.
    """
    accumulation, rest = divmod(step, nproc_per_node * nnodes)
    if not rest:
        return accumulation
    counts_nodes = nproc_per_node > 1 and step % nproc_per_node == 0
    possible = listed([str(count) for count in divisors(step // nproc_per_node if counts_nodes else step)])
    unit = f"nodes of {nproc_per_node} processes" if counts_nodes else "processes"
    message = f"the {counted(step, 'microbatch', 'microbatches')} of a step cannot be divided by "
    message += f"{counted(nproc_per_node * nnodes, 'process', 'processes')} ({KEEPS})"
    hint = f"possible numbers of {unit}: {possible}"
    raise ProjectError("indivisible-step", message, hint, "distributed.nnodes")


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, in ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def with_kept_step(layers: Sequence[Document], overrides: Sequence[Override]) -> tuple[Override, ...]:
    """Return the overrides; if trainer.keep_step is true, with the accumulation for the ranks that they set.

    The step is set by the files and the other overrides. Invalid counts are left to the schema.
    Raises ProjectError if the ranks do not divide the step, or if a batch-size warm-up counts by rank.
    """
    ranks = [each for each in overrides if each.path in RANKS]
    if not ranks:
        return tuple(overrides)
    stated = _resolved_values(layers, [each for each in overrides if each.path not in RANKS])
    step, given = (
        _positive_counts(stated, FACTORS),
        _positive_counts(_resolved_values(layers, overrides), RANKS),
    )
    if stated[KEEPS] is not True or not (step and given):
        return tuple(overrides)
    accumulation = accumulation_for(prod(step), *given)
    if accumulation != stated[ACCUMULATION] and stated[WARMUP]:
        message = f"{WARMUP} counts the microbatches of each rank, which {KEEPS} changes"
        hint = f"set {WARMUP} to 0, or leave out {OPTIONS[ranks[0].path]}"
        raise ProjectError("warm-up-by-rank", message, hint, WARMUP)
    return (*overrides, ranks[-1]._replace(path=ACCUMULATION, text=str(accumulation)))


def _resolved_values(layers: Sequence[Document], overrides: Sequence[Override]) -> dict[str, object]:
    documents = [*layers, *map(override_layer, overrides)]
    root = reduce(lay_over, (document.root for document in documents), EMPTY)
    root, _ = substitute(root, references_in(root))
    found = {key: find(root, tuple(key.split("."))) for key in (KEEPS, WARMUP, *FACTORS)}
    return {key: DEFAULTS[key] if node is None else node.value for key, node in found.items()}


def _positive_counts(values: Mapping[str, object], keys: Sequence[str]) -> list[int]:
    """Return the values of these keys, or an empty list if any of them is not a positive integer."""
    counts = [value for key in keys if isinstance(value := values[key], int) and value > 0]
    return counts if len(counts) == len(keys) else []
