"""Planted faults (mutants), which test the probes: a probe that misses its fault is broken.

Each mutant names the probe that must detect it. Its result is the measurements of that probe, to which a rule
applies the same limits as to the unmodified path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERT
from neobert.objectives import TokenObjective
from neobert.probes.numerics.faulty_attention import (
    AttentionNoise,
    ExtraKeys,
    Target,
    faulty_attention,
    patch_functions,
)
from neobert.probes.numerics.isolation import (
    choose_victims,
    declared_direction,
    measure_direction,
    measure_isolation,
    measure_leak,
    measure_padding,
    measure_repeats,
    short_documents,
)
from neobert.probes.numerics.leak_batch import LeakBatch
from neobert.probes.numerics.parity import ReferenceErrors, measure_parity
from neobert.probes.numerics.paths import Path
from neobert.probes.numerics.rotary import measure_rotation, rotary_table_function

VICTIM = 3
"""Index of the segment that leaks into the next one. It has 64 tokens if rows are long enough."""

NUM_DIRECTION_DOCUMENTS = 2
"""Number of documents checked for a wrong attention direction; one would be enough."""

Measure = Callable[[Path, LeakBatch], Any]


@dataclass(frozen=True, eq=False)
class Mutant:
    """A planted fault.

    Attributes:
        probe: name of the probe that must detect the fault.
        batch: microbatch to probe; it contains the fault if the fault is in the batch.
        measure: runs the named probe.
        planted: context manager that patches the fault into the code, if the fault is in the code.
        changed: returns the faulty path, if the fault is in the path.
    """

    name: str
    probe: str
    batch: LeakBatch
    measure: Measure
    planted: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)
    changed: Callable[[Path], Path] = field(default=lambda path: path)


def run_mutants(path: Path, batch: LeakBatch, reference_errors: ReferenceErrors) -> list[dict[str, Any]]:
    """Plant one fault after another; return, per fault, the measurements of the probe that must detect it."""
    listed = compiled_mutants(batch) if path.is_compiled else eager_mutants(path, batch, reference_errors)
    with _disable_recomputation(path):
        return [_run_mutant(mutant, path) for mutant in listed]


@contextmanager
def _disable_recomputation(path: Path) -> Iterator[None]:
    """Disable gradient checkpointing inside the `with` block.

    A fault in one layer finds its layer by counting calls, and recomputation would add calls.
    """
    blocks: Iterable[Any] = path.model.model.transformer_encoder
    before = [(block, block.gradient_checkpointing) for block in blocks]
    try:
        for block, _ in before:
            block.gradient_checkpointing = False
        yield
    finally:
        for block, was_on in before:
            block.gradient_checkpointing = was_on


def _run_mutant(mutant: Mutant, path: Path) -> dict[str, Any]:
    with mutant.planted():
        measured = mutant.measure(mutant.changed(path), mutant.batch)
    return {"name": mutant.name, "probe": mutant.probe, "probes": {mutant.probe: measured}}


def eager_mutants(path: Path, batch: LeakBatch, reference_errors: ReferenceErrors) -> Iterator[Mutant]:
    """Yield every fault that applies to an eager path and to this batch, packed or padded."""
    if batch.inputs["cu_seqlens"] is None:
        everywhere = torch.ones_like(batch.inputs["attention_mask"])
        yield _parity_mutant(
            "attention mask dropped", batch.with_inputs(attention_mask=everywhere), reference_errors
        )
    else:
        yield from _packing_mutants(batch, reference_errors)
    yield from _attention_mutants(path, batch)
    if path.model.config.rope:
        yield from _rotation_mutants(path, batch)
    yield _gradient_mutant(batch)
    yield Mutant(
        "another result each time",
        "repeats",
        batch,
        measure_repeats,
        lambda: faulty_attention(AttentionNoise(1e-2)),
    )


def compiled_mutants(batch: LeakBatch) -> Iterator[Mutant]:
    """Yield the faults that keep the batch's shapes: other shapes do not fit a compiled graph."""
    if batch.inputs["cu_seqlens"] is not None:
        yield Mutant(
            "cu_seqlens off by one", "isolation", _with_shifted_boundary(batch), _measure_victim_leak
        )
        yield Mutant("two segments merged", "isolation", _with_merged_segments(batch), _measure_victim_leak)
    yield _gradient_mutant(batch)


def _measure_victim_leak(path: Path, batch: LeakBatch) -> dict[str, Any]:
    first = VICTIM if len(batch.places) > VICTIM + 1 else 0
    return measure_leak(path, batch, (first, *choose_victims(batch)))


def _packing_mutants(batch: LeakBatch, reference_errors: ReferenceErrors) -> Iterator[Mutant]:
    whole = _as_one_segment(batch)
    yield Mutant("segment mask dropped, all layers", "isolation", whole, _measure_victim_leak)
    yield Mutant("cu_seqlens off by one", "isolation", _with_shifted_boundary(batch), _measure_victim_leak)
    name = "all-ones mask over the packed run"
    yield Mutant(
        name,
        "isolation",
        _as_unpacked_row(batch),
        _measure_victim_leak,
        _disable_length_check,
        changed=_as_exported_model,
    )
    yield _parity_mutant("segment mask dropped, all layers", whole, reference_errors)


def _parity_mutant(name: str, batch: LeakBatch, reference_errors: ReferenceErrors) -> Mutant:
    return Mutant(name, "parity", batch, lambda path, batch: measure_parity(path, batch, reference_errors))


def _attention_mutants(path: Path, batch: LeakBatch) -> Iterator[Mutant]:
    everything = torch.cat(batch.places)
    dropped = ((everything, everything),)
    neighbour = VICTIM + 1 if len(batch.places) > VICTIM + 1 else 1
    victim, receiver = batch.places[neighbour - 1], batch.places[neighbour]
    one_key = ((receiver, torch.cat((receiver, victim[:1]))),)
    one_pad = ((receiver, torch.cat((receiver, batch.padding[:1]))),)
    last, head = path.model.config.num_hidden_layers - 1, path.model.config.num_attention_heads - 1
    faults = {
        "segment mask dropped, one layer": ExtraKeys(dropped, layers=(last,)),
        "segment mask dropped, one head": ExtraKeys(dropped, layers=(0,), heads=(head,)),
        "one leaked key, one layer, one head": ExtraKeys(one_key, layers=(last,), heads=(head,)),
    }
    for name, change in faults.items():
        yield Mutant(name, "isolation", batch, _measure_victim_leak, partial(faulty_attention, change))
    leaking_pad = ExtraKeys(one_pad, layers=(last,), heads=(head,))
    name = "one leaked padding key, one layer, one head"
    yield Mutant(name, "padding", batch, measure_padding, lambda: faulty_attention(leaking_pad))
    yield _direction_mutant(path, batch)


def _direction_mutant(path: Path, batch: LeakBatch) -> Mutant:
    is_causal = declared_direction(path) == "causal"
    reach = ExtraKeys([(places, places) for places in batch.places], is_causal=not is_causal)
    return Mutant(
        "causal mask off" if is_causal else "causal mask on",
        "direction",
        batch,
        _measure_victim_directions,
        lambda: faulty_attention(reach),
    )


def _measure_victim_directions(path: Path, batch: LeakBatch) -> dict[str, Any]:
    documents = short_documents(batch, choose_victims(batch))
    return measure_direction(path, batch, documents[:NUM_DIRECTION_DOCUMENTS])


def _gradient_mutant(batch: LeakBatch) -> Mutant:
    return Mutant(
        "leaked gradient, correct forward pass",
        "isolation",
        batch,
        lambda path, batch: measure_isolation(path, batch, (0,)),
        changed=lambda path: LeakyPath(**{f.name: getattr(path, f.name) for f in fields(path)}),
    )


@dataclass(frozen=True, eq=False)
class LeakyPath(Path):
    """A path with the correct loss and a gradient that leaks to every token's embedding."""

    def loss(self, batch: LeakBatch, labels: Tensor) -> Tensor:
        """Return the correct loss plus a zero term that has a gradient for every embedding row."""
        leak = self.model.model.encoder.weight.sum() * 1e-6
        return super().loss(batch, labels) + (leak - leak.detach())


def _as_exported_model(path: Path) -> Path:
    """Return the path without the trainer's kernels, as a user who loads the exported model runs it."""
    return replace(path, objective=TokenObjective(backbone_from_model(path.model), targets_only=True))


def _disable_length_check() -> AbstractContextManager[None]:
    """Disable the model's check that a row fits `max_position_embeddings`: the packed row is longer."""
    return patch_functions([(NeoBERT, "_check_length")], lambda *_: lambda *_: None)


def _rotation_mutants(path: Path, batch: LeakBatch) -> Iterator[Mutant]:
    ids = batch.inputs["position_ids"]
    through = torch.arange(ids.numel(), device=ids.device).view_as(ids)
    yield Mutant("positions not reset", "rotation", batch.with_inputs(position_ids=through), measure_rotation)
    yield Mutant(
        "rotation computed in bf16", "rotation", batch, measure_rotation, lambda: _round_rotation(path)
    )


@contextmanager
def _round_rotation(path: Path) -> Iterator[None]:
    def rounded_to_bf16(make: Callable[..., Tensor], _: Target) -> Callable[..., Tensor]:
        return lambda *arguments: make(*arguments).to(torch.bfloat16).to(torch.float32)

    with patch_functions([rotary_table_function(path)], rounded_to_bf16):
        yield


def _as_one_segment(batch: LeakBatch) -> LeakBatch:
    bounds = batch.inputs["cu_seqlens"].clone()
    bounds[1:] = bounds[-1]
    return batch.with_inputs(cu_seqlens=bounds, max_seqlen=int(bounds[-1]))


def _with_shifted_boundary(batch: LeakBatch) -> LeakBatch:
    """Move one segment boundary so that the segment includes the first token of the next segment."""
    bounds = batch.inputs["cu_seqlens"].clone()
    bounds[_mergeable_boundary(batch)] += 1
    return batch.with_inputs(cu_seqlens=bounds)


def _with_merged_segments(batch: LeakBatch) -> LeakBatch:
    """Merge one segment with the next, by moving its end in cu_seqlens to the end of the next."""
    bounds, at = batch.inputs["cu_seqlens"].clone(), _mergeable_boundary(batch)
    bounds[at] = bounds[at + 1]
    return batch.with_inputs(cu_seqlens=bounds)


def _mergeable_boundary(batch: LeakBatch) -> int:
    """Return the cu_seqlens index of the end of a segment that, merged with the next, fits max_seqlen."""
    lengths, longest = batch.lengths, batch.inputs["max_seqlen"]
    choices = [VICTIM, *range(len(lengths) - 1)]
    boundary: int = 1 + next(
        n
        for n in choices
        if n + 1 < len(lengths) and lengths[n + 1] > 1 and lengths[n] + lengths[n + 1] <= longest
    )
    return boundary


def _as_unpacked_row(batch: LeakBatch) -> LeakBatch:
    """Return the packed batch as one row with an attention mask of ones, as many collators produce it."""
    inputs = batch.inputs
    return batch.with_inputs(
        input_ids=inputs["input_ids"][None],
        position_ids=inputs["position_ids"][None],
        attention_mask=torch.ones_like(inputs["input_ids"])[None],
        cu_seqlens=None,
        max_seqlen=None,
    )
