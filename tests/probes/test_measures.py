"""What the probes make of paths whose faults are known to the bit: which number is told, and of what."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from neobert.model import encoder
from neobert.probes.numerics import isolation
from neobert.probes.numerics.isolation import (
    NUM_VICTIMS,
    choose_victims,
    measure_direction,
    measure_isolation,
    measure_leak,
    measure_padding,
    measure_repeats,
)
from neobert.probes.numerics.leak_batch import EDGE_LENGTHS, FIRST_ID, LeakBatch, lengths_for
from neobert.probes.numerics.parity import ReferenceErrors, _error_ratio, _gradient_errors, measure_parity
from neobert.probes.numerics.paths import UNBOUNDED
from neobert.probes.numerics.rotary import measure_rotation

WIDTH = 2
TABLE = "model.encoder.weight"


def lay_out(*lengths: int, num_padding: int = 2) -> LeakBatch:
    """Segments behind each other, each token with an id of its own, and padding behind them."""
    most = max(lengths) + 1
    ids = [
        FIRST_ID + number * most + place for number, length in enumerate(lengths) for place in range(length)
    ]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    places = tuple(torch.arange(bounds[k], bounds[k + 1]) for k in range(len(lengths)))
    inputs = {"input_ids": torch.tensor(ids + [0] * num_padding), "cu_seqlens": bounds.int()}
    padding = torch.arange(sum(lengths), sum(lengths) + num_padding)
    return LeakBatch(inputs, places, padding, most, FIRST_ID + (len(lengths) + 1) * most)


@dataclass(eq=False)
class Toy:
    """A path that doubles each token's embedding by its segment, and leaks what it is told to.

    Attributes:
        leaks: (from, to, share) by place.
        scales: of each segment.
        deaf: places whose own tokens do not matter.
        noise: by the number of the pass, added to the first place.
    """

    batch: LeakBatch
    leaks: Sequence[tuple[int, int, float]] = ()
    scales: Sequence[float] = ()
    deaf: Sequence[int] = ()
    noise: dict[int, float] = field(default_factory=dict)
    is_compiled: bool = False
    passes: int = 0

    def __post_init__(self) -> None:
        values = torch.arange(self.batch.vocab_size * WIDTH, dtype=torch.float32)
        self.table = values.view(-1, WIDTH).requires_grad_()

    def forward(self, batch: LeakBatch) -> torch.Tensor:
        embedded = self.table[batch.input_ids]
        scale = torch.ones(len(embedded), 1)
        for places, own in zip(self.batch.places, self.scales or [1.0] * 99, strict=False):
            scale[places] = own
        scale[list(self.deaf)] = 0.0
        out = embedded * scale
        for source, target, share in self.leaks:
            out = out.index_add(0, torch.tensor([target]), share * embedded[source : source + 1])
        extra = torch.zeros_like(out)
        extra[0] = self.noise.get(self.passes, 0.0)
        self.passes += 1
        return out + extra

    def hidden(self, batch: LeakBatch) -> torch.Tensor:
        return self.forward(batch).detach()

    def loss(self, batch: LeakBatch, labels: torch.Tensor) -> torch.Tensor:
        return self.forward(batch)[labels >= 0].sum()

    def gradients(self, batch: LeakBatch, labels: torch.Tensor):
        loss = self.loss(batch, labels)
        (gradient,) = torch.autograd.grad(loss, self.table)
        return loss.detach(), {TABLE: gradient}


@pytest.mark.parametrize(
    ("count", "chosen"), [(1, (0,)), (3, (0, 1, 2)), (6, (0, 1, 2, 3, 4, 5)), (20, (0, 1, 2, 3, 4, 5, 19))]
)
def test_victims_are_the_first_and_the_last(count, chosen, monkeypatch):
    monkeypatch.setattr(isolation, "NUM_VICTIMS", 6)
    assert choose_victims(lay_out(*[1] * count)) == chosen


def test_every_edge_the_longest_and_a_short_one_are_victims(monkeypatch):
    monkeypatch.setattr(isolation, "NUM_VICTIMS", NUM_VICTIMS)
    assert choose_victims(lay_out(*[1] * 40)) == (*range(12), 39)
    assert lengths_for(1024)[:12] == (*EDGE_LENGTHS, 1024, 3)


def test_a_sound_path_leaks_nothing_and_hears_itself():
    batch = lay_out(2, 3, 1)
    found = measure_isolation(Toy(batch, scales=(1.0, 2.0, 4.0)), batch, (0, 1, 2))
    assert found == {
        "observed": "hidden states",
        "victims": 3,
        "responding": 3,
        "leaked_tokens": 0,
        "largest_leak": 0.0,
        "largest_cross_gradient": 0.0,
        # of the loss of all but the third segment; the others' losses have it and its 4
        "smallest_own_gradient": 1.0,
        "unstable": 0.0,
    }


def test_the_largest_leak_of_any_victim_is_told():
    """The first segment's only token is heard, once, by the second; no other hears anything."""
    batch = lay_out(1, 8, 1)
    found = measure_isolation(Toy(batch, leaks=[(0, 1, 0.5)]), batch, (0, 1, 2))
    assert (found["leaked_tokens"], found["largest_leak"], found["responding"]) == (1, 0.5 * WIDTH, 3)
    assert found["largest_cross_gradient"] == 0.5


def test_noise_of_any_pass_is_told():
    batch = lay_out(1, 1, 1)
    assert measure_isolation(Toy(batch, noise={1: 0.25}), batch, (0, 1, 2))["unstable"] == 0.25
    assert measure_isolation(Toy(batch, noise={5: 0.25}), batch, (0, 1, 2))["unstable"] == 0.25


def test_a_victim_that_is_not_heard_does_not_respond():
    batch = lay_out(1, 1, 1)
    assert measure_isolation(Toy(batch, deaf=[1]), batch, (0, 1, 2))["responding"] == 2
    assert measure_leak(Toy(batch, deaf=[1]), batch, (1,))["responding"] == 0


def test_a_compiled_path_is_watched_by_its_loss():
    batch = lay_out(1, 1)
    as_loss = Toy(batch, is_compiled=True)
    as_loss.hidden = None  # type: ignore[assignment,method-assign]
    assert measure_isolation(as_loss, batch, (0, 1))["observed"] == "the loss"
    assert measure_leak(as_loss, batch, (0, 1))["observed"] == "the loss"
    eager = measure_leak(Toy(batch), batch, (0, 1))
    assert eager["observed"] == "hidden states"


def test_the_search_for_a_planted_leak_ends_at_the_first():
    batch = lay_out(1, 1, 1, 1)
    quiet = {"largest_cross_gradient": 0.0, "smallest_own_gradient": 1.0, "unstable": 0.0}
    assert measure_leak(Toy(batch), batch, ()) == {
        "observed": "hidden states", "victims": 0, "responding": 0,
        "leaked_tokens": 0, "largest_leak": 0.0, **quiet,
    }  # fmt: skip
    assert measure_leak(Toy(batch, leaks=[(1, 0, 0.5), (1, 2, 0.125), (1, 3, 0.25)]), batch, (0, 1, 2)) == {
        "observed": "hidden states", "victims": 2, "responding": 2,
        "leaked_tokens": 3, "largest_leak": 0.5 * WIDTH, **quiet,
    }  # fmt: skip
    assert measure_leak(Toy(batch), batch, (0, 1, 2))["victims"] == 3


def test_padding_that_one_token_hears():
    batch = lay_out(2, 1)
    sound = measure_padding(Toy(batch), batch)
    assert (sound["leaked_tokens"], sound["largest_leak"], sound["largest_cross_gradient"]) == (0, 0.0, 0.0)
    assert (sound["victims"], sound["responding"]) == (2, 2)
    assert sound["smallest_own_gradient"] == 1.0
    found = measure_padding(Toy(batch, leaks=[(3, 1, 0.5)]), batch)
    moved = 0.5 * WIDTH * (FIRST_ID + 2 * batch.ids_per_segment)
    assert (found["leaked_tokens"], found["largest_leak"]) == (1, moved)
    rows = measure_padding(Toy(batch), batch.with_inputs(cu_seqlens=None))
    assert rows["victims"] == 1


@dataclass(eq=False)
class Listening:
    """A path whose first token hears one place, and whose last token another, of the only document."""

    first_hears: int
    last_hears: int

    def hidden(self, batch: LeakBatch) -> torch.Tensor:
        values = batch.input_ids.double()
        out = torch.zeros(len(values), 1, dtype=torch.float64)
        places = batch.places[0]
        out[places[0]], out[places[-1]] = values[self.first_hears], values[self.last_hears]
        return out


@pytest.mark.parametrize(
    ("first_hears", "last_hears", "early", "late"),
    [(10, 9, 1, 1), (19, 0, 1, 1), (9, 10, 0, 0), (7, 7, 0, 1), (0, 19, 0, 0)],
)
def test_late_is_the_second_half_and_early_the_first(first_hears, last_hears, early, late):
    found = measure_direction(Listening(first_hears, last_hears), lay_out(20), (0,))
    assert found == {"documents": 1, "early_moved": early, "late_moved": late}


def test_documents_of_16_to_300_tokens_say_something_of_direction():
    batch = lay_out(15, 16, 300, 301)
    found = measure_direction(Toy(batch), batch, range(4))
    assert found == {"documents": 2, "early_moved": 0, "late_moved": 0}


def test_errors_of_gradients_are_relative_and_the_largest_is_told():
    truth = SimpleNamespace(
        gradients={"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0]), "idle": torch.zeros(2)}
    )
    found = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([1.5]), "idle": torch.ones(2)}
    errors = _gradient_errors(found, truth)
    assert errors == pytest.approx({"max": 0.5, "mean": 0.3})


@pytest.mark.parametrize(
    ("error", "unit", "ratio"), [(1.0, 2.0, 0.5), (0.0, 2.0, 0.0), (0.0, 0.0, 0.0), (1e-9, 0.0, UNBOUNDED)]
)
def test_an_error_is_counted_in_units_of_rounding(error, unit, ratio):
    assert _error_ratio(error, unit) == ratio


@pytest.mark.parametrize("where", ["loss", "gradient", "nowhere"])
def test_one_number_that_is_none_is_enough(where, path, setting, monkeypatch):
    reference_errors = ReferenceErrors(path, setting.batch)
    sound = type(path).gradients

    def spoilt(self, batch, labels):
        loss, gradients = sound(self, batch, labels)
        if where == "loss":
            return loss * torch.nan, gradients
        name = next(iter(gradients))
        return loss, gradients | ({name: gradients[name] * torch.nan} if where == "gradient" else {})

    monkeypatch.setattr(type(path), "gradients", spoilt)
    assert measure_parity(path, setting.batch, reference_errors)["is_finite"] is (where == "nowhere")


def in_turns(
    *answers: tuple[float, dict[str, float]],
) -> Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    reported = iter(answers)

    def gradients(*_: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, values = next(reported)
        return torch.tensor(loss), {name: torch.tensor([value]) for name, value in values.items()}

    return gradients


def test_steps_that_differ_are_counted_by_tensor_and_by_the_size_of_each():
    batch = lay_out(2)
    first = (5.0, {"still": 1.0, "moved": 2.0, "was zero": 0.0})
    again = (4.5, {"still": 1.0, "moved": 2.5, "was zero": 0.125})
    found = measure_repeats(SimpleNamespace(gradients=in_turns(first, again)), batch)
    assert found == {
        "loss_moved": 0.5,
        "tensors_moved": 2,
        "moved": ["moved", "was zero"],
        "gradient_moved": 0.25,
    }
    again = (5.0, {"still": 1.0, "moved": 2.0, "was zero": 0.125})
    found = measure_repeats(SimpleNamespace(gradients=in_turns(first, again)), batch)
    assert found == {"loss_moved": 0.0, "tensors_moved": 1, "moved": ["was zero"], "gradient_moved": 0.125}
    found = measure_repeats(SimpleNamespace(gradients=in_turns(first, first)), batch)
    assert found == {"loss_moved": 0.0, "tensors_moved": 0, "moved": [], "gradient_moved": 0.0}


def test_what_is_no_number_twice_repeats_and_once_does_not():
    sound, spoilt = (5.0, {"a": 1.0}), (math.nan, {"a": math.nan})
    found = measure_repeats(SimpleNamespace(gradients=in_turns(spoilt, spoilt)), lay_out(2))
    assert found == {"loss_moved": 0.0, "tensors_moved": 0, "moved": [], "gradient_moved": 0.0}
    found = measure_repeats(SimpleNamespace(gradients=in_turns(sound, spoilt)), lay_out(2))
    assert (found["loss_moved"], found["moved"]) == (UNBOUNDED, ["a"])


@pytest.mark.parametrize("wrong_call", [0, 1])
def test_one_wrong_rotation_of_several_is_told(wrong_call):
    batch = lay_out(3, 2, num_padding=1)
    right = torch.tensor([0, 1, 2, 0, 1, 0])

    def reported(positions, theta):
        def hidden(_):
            for call in (0, 1):
                is_wrong = call == wrong_call
                encoder.compute_rotation(positions if is_wrong else right, 4, theta if is_wrong else 10.0)

        config = SimpleNamespace(dim_head=4, rope_theta=10.0)
        return measure_rotation(SimpleNamespace(hidden=hidden, model=SimpleNamespace(config=config)), batch)

    sound = reported(right, 10.0)
    assert (sound["max_position"], sound["misplaced"]) == (2, 0)
    assert sound["largest_error"] < 1e-6
    assert reported(torch.tensor([0, 1, 2, 3, 4, 0]), 10.0)["misplaced"] == 2
    assert reported(right, 100.0)["largest_error"] > 0.1
