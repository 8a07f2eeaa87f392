"""Faults that are planted in the path on purpose. A probe that does not see its own is worth nothing.

Each names the probe that must find it. The result is what that probe measured; a rule judges it as it judges
the sound path.

Shapes: T token places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from neobert.objectives import MaskedLMObjective
from neobert.probes.numerics.attention_direction import audible, direction_declared, measure_direction
from neobert.probes.numerics.determinism import measure_repeats
from neobert.probes.numerics.faulty_attention import Noise, Reach, planted_attention
from neobert.probes.numerics.isolation import choose_victims, measure_isolation, measure_leak, measure_padding
from neobert.probes.numerics.leak_batch import Specimen
from neobert.probes.numerics.parity import Yardstick, measure_parity
from neobert.probes.numerics.patching import Place, replaced
from neobert.probes.numerics.paths import Path
from neobert.probes.numerics.rotary import maker_of, measure_rotation

VICTIM = 3
"""The segment whose neighbour hears of it: of 63 tokens where rows are long enough."""

HEARERS = 2
"""Documents in which a wrong direction has to show: one is enough to see it."""

Measure = Callable[[Path, Specimen], Any]


@dataclass(frozen=True, eq=False)
class Mutant:
    """A planted fault.

    Attributes:
        probe: the group of results that must show it.
        specimen: the microbatch, with the fault where it is one of the batch.
        planted: puts the fault in place, where it is one of the code.
        measure: the named probe.
        changed: puts another path in place of the trainer's, where the fault is one of the path.
    """

    name: str
    probe: str
    specimen: Specimen
    measure: Measure
    planted: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)
    changed: Callable[[Path], Path] = field(default=lambda path: path)


def run_mutants(path: Path, specimen: Specimen, yardstick: Yardstick) -> list[dict[str, Any]]:
    """Plant one fault after another; return what the probe that must see it measured."""
    listed = compiled_mutants(specimen) if path.is_compiled else eager_mutants(path, specimen, yardstick)
    with _without_recomputation(path):
        return [_run(mutant, path) for mutant in listed]


@contextmanager
def _without_recomputation(path: Path) -> Iterator[None]:
    """A fault of one layer counts the calls of a forward, and recomputation calls again."""
    blocks: Iterable[Any] = path.model.model.transformer_encoder
    before = [(block, block.gradient_checkpointing) for block in blocks]
    try:
        for block, _ in before:
            block.gradient_checkpointing = False
        yield
    finally:
        for block, was_on in before:
            block.gradient_checkpointing = was_on


def _run(mutant: Mutant, path: Path) -> dict[str, Any]:
    with mutant.planted():
        measured = mutant.measure(mutant.changed(path), mutant.specimen)
    return {"name": mutant.name, "probe": mutant.probe, "probes": {mutant.probe: measured}}


def eager_mutants(path: Path, specimen: Specimen, yardstick: Yardstick) -> Iterator[Mutant]:
    """Every fault that this layout of a batch can have."""
    if specimen.inputs["cu_seqlens"] is None:
        everywhere = torch.ones_like(specimen.inputs["attention_mask"])
        yield _contaminated(
            "attention mask dropped", specimen.with_inputs(attention_mask=everywhere), yardstick
        )
    else:
        yield from _of_packing(specimen, yardstick)
    yield from _of_attention(path, specimen)
    if path.model.config.rope:
        yield from _of_rotation(path, specimen)
    yield _leaking_gradient(specimen)
    yield Mutant(
        "another result each time",
        "repeats",
        specimen,
        measure_repeats,
        lambda: planted_attention(Noise(1e-2)),
    )


def compiled_mutants(specimen: Specimen) -> Iterator[Mutant]:
    """Faults of the batch alone, whose shapes stay: a compiled graph takes no other."""
    if specimen.inputs["cu_seqlens"] is not None:
        yield Mutant("cu_seqlens off by one", "isolation", _shifted(specimen), _leak)
        yield Mutant("two segments merged", "isolation", _merged(specimen), _leak)
    yield _leaking_gradient(specimen)


def _leak(path: Path, specimen: Specimen) -> dict[str, Any]:
    first = VICTIM if len(specimen.places) > VICTIM + 1 else 0
    return measure_leak(path, specimen, (first, *choose_victims(specimen)))


def _of_packing(specimen: Specimen, yardstick: Yardstick) -> Iterator[Mutant]:
    whole = _one_segment(specimen)
    yield Mutant("segment mask dropped, all layers", "isolation", whole, _leak)
    yield Mutant("cu_seqlens off by one", "isolation", _shifted(specimen), _leak)
    name = "all-ones mask over the packed run"
    yield Mutant(name, "isolation", _as_row(specimen), _leak, changed=_as_exported)
    yield _contaminated("segment mask dropped, all layers", whole, yardstick)


def _contaminated(name: str, specimen: Specimen, yardstick: Yardstick) -> Mutant:
    return Mutant(name, "parity", specimen, lambda path, batch: measure_parity(path, batch, yardstick))


def _of_attention(path: Path, specimen: Specimen) -> Iterator[Mutant]:
    everything = torch.cat(specimen.places)
    dropped = ((everything, everything),)
    neighbour = VICTIM + 1 if len(specimen.places) > VICTIM + 1 else 1
    victim, hearer = specimen.places[neighbour - 1], specimen.places[neighbour]
    one_key = ((hearer, torch.cat((hearer, victim[:1]))),)
    one_pad = ((hearer, torch.cat((hearer, specimen.padding[:1]))),)
    last, head = path.model.config.num_hidden_layers - 1, path.model.config.num_attention_heads - 1
    faults = {
        "segment mask dropped, one layer": Reach(dropped, layers=(last,)),
        "segment mask dropped, one head": Reach(dropped, layers=(0,), heads=(head,)),
        "one leaked key, one layer, one head": Reach(one_key, layers=(last,), heads=(head,)),
    }
    for name, reach in faults.items():
        yield Mutant(name, "isolation", specimen, _leak, lambda reach=reach: planted_attention(reach))  # type: ignore[misc]
    heard = Reach(one_pad, layers=(last,), heads=(head,))
    name = "one padding key heard, one layer, one head"
    yield Mutant(name, "padding", specimen, measure_padding, lambda: planted_attention(heard))
    yield _wrong_direction(path, specimen)


def _wrong_direction(path: Path, specimen: Specimen) -> Mutant:
    is_causal = direction_declared(path) == "causal"
    reach = Reach([(places, places) for places in specimen.places], is_causal=not is_causal)
    return Mutant(
        "causal mask off" if is_causal else "causal mask on",
        "direction",
        specimen,
        lambda path, batch: measure_direction(path, batch, audible(batch, choose_victims(batch))[:HEARERS]),
        lambda: planted_attention(reach),
    )


def _leaking_gradient(specimen: Specimen) -> Mutant:
    return Mutant(
        "gradient leaked, forward sound",
        "isolation",
        specimen,
        lambda path, batch: measure_isolation(path, batch, (0,)),
        changed=lambda path: LeakyPath(**{f.name: getattr(path, f.name) for f in fields(path)}),
    )


@dataclass(frozen=True, eq=False)
class LeakyPath(Path):
    """A path whose loss is right, and whose gradient reaches every token's embedding."""

    def loss(self, specimen: Specimen, labels: Tensor) -> Tensor:
        """Add nothing that has a gradient."""
        leak = self.model.model.encoder.weight.sum() * 1e-6
        return super().loss(specimen, labels) + (leak - leak.detach())


def _as_exported(path: Path) -> Path:
    """Return the path of those who load the model, and know nothing of the trainer's step."""
    return replace(path, objective=MaskedLMObjective(path.model, masked_logits_only=True))


def _of_rotation(path: Path, specimen: Specimen) -> Iterator[Mutant]:
    ids = specimen.inputs["position_ids"]
    through = torch.arange(ids.numel(), device=ids.device).view_as(ids)
    yield Mutant(
        "positions not reset", "rotation", specimen.with_inputs(position_ids=through), measure_rotation
    )
    yield Mutant(
        "rotation computed in bf16", "rotation", specimen, measure_rotation, lambda: _coarse_rotation(path)
    )


@contextmanager
def _coarse_rotation(path: Path) -> Iterator[None]:
    def coarse(make: Callable[..., Tensor], _: Place) -> Callable[..., Tensor]:
        return lambda *arguments: make(*arguments).to(torch.bfloat16).to(torch.float32)

    with replaced([maker_of(path)], coarse):
        yield


def _one_segment(specimen: Specimen) -> Specimen:
    bounds = specimen.inputs["cu_seqlens"].clone()
    bounds[1:] = bounds[-1]
    return specimen.with_inputs(cu_seqlens=bounds, max_seqlen=int(bounds[-1]))


def _shifted(specimen: Specimen) -> Specimen:
    """Move the end of a segment over the first token of the next."""
    bounds = specimen.inputs["cu_seqlens"].clone()
    bounds[_boundary(specimen)] += 1
    return specimen.with_inputs(cu_seqlens=bounds)


def _merged(specimen: Specimen) -> Specimen:
    """Let a segment run to the end of the next."""
    bounds, at = specimen.inputs["cu_seqlens"].clone(), _boundary(specimen)
    bounds[at] = bounds[at + 1]
    return specimen.with_inputs(cu_seqlens=bounds)


def _boundary(specimen: Specimen) -> int:
    """Return the entry of cu_seqlens behind a victim that is short enough to grow within max_seqlen."""
    lengths, longest = specimen.lengths, specimen.inputs["max_seqlen"]
    choices = [VICTIM, *range(len(lengths) - 1)]
    boundary: int = 1 + next(
        n
        for n in choices
        if n + 1 < len(lengths) and lengths[n + 1] > 1 and lengths[n] + lengths[n + 1] <= longest
    )
    return boundary


def _as_row(specimen: Specimen) -> Specimen:
    """Hand the packed run to the model as one row under a mask of ones, as many collators do."""
    inputs = specimen.inputs
    return specimen.with_inputs(
        input_ids=inputs["input_ids"][None],
        position_ids=inputs["position_ids"][None],
        attention_mask=torch.ones_like(inputs["input_ids"])[None],
        cu_seqlens=None,
        max_seqlen=None,
    )
