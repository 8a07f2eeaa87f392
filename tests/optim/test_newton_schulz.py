"""The batched iteration is torch's, matrix by matrix."""

import pytest
import torch
from torch.optim import Muon

from neobert.optim.newton_schulz import (
    COEFFICIENTS,
    EPS,
    iteration_dtype,
    learning_rate_factor,
    orthogonalize,
)

SHAPES = [(8, 8), (32, 32), (24, 40), (40, 24), (1, 7)]


@pytest.fixture
def torch_direction():
    """What torch's Muon would move a matrix along, given its gradient."""

    def direction(gradient: torch.Tensor, num_steps: int = 5) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.zeros_like(gradient))
        weight.grad = gradient
        ratio = max(1.0, gradient.shape[0] / gradient.shape[1]) ** 0.5
        Muon([weight], lr=1 / ratio, momentum=0.0, weight_decay=0.0, ns_steps=num_steps).step()
        return -weight.detach()

    return direction


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_steps", [1, 5])
def test_each_matrix_of_a_batch_gets_what_torch_gives_it(shape, num_steps, torch_direction):
    matrices = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([torch_direction(each, num_steps) for each in matrices])
    ours = orthogonalize(matrices.bfloat16(), num_steps)
    torch.testing.assert_close(ours.float(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_only_a_cpu_iterates_in_fp32(device, dtype):
    """Also one with bf16 instructions, so that a run can be resumed on one without."""
    assert iteration_dtype(torch.device(device)) == dtype


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 64)])
def test_singular_values_end_in_the_band_of_the_quintic(shape):
    matrices = torch.randn(4, *shape, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonalize(matrices, 5).double())
    assert values.min() > 0.6
    assert values.max() < 1.25


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
def test_the_scale_of_a_gradient_means_nothing(scale):
    matrices = torch.randn(1, 16, 24, generator=torch.Generator().manual_seed(3))
    scaled = orthogonalize(matrices * scale, 5).float()
    torch.testing.assert_close(scaled, orthogonalize(matrices, 5).float(), rtol=0.05, atol=0.02)


def test_zeros_stay_zeros():
    assert not orthogonalize(torch.zeros(2, 4, 6), 5).any()


def test_constants_are_those_of_torch():
    defaults = Muon([torch.nn.Parameter(torch.zeros(2, 2))]).defaults
    assert defaults["ns_coefficients"] == COEFFICIENTS
    assert defaults["eps"] == EPS


@pytest.mark.parametrize(
    ("name", "rows", "columns", "factor"),
    [
        ("original", 8, 2, 2.0),
        ("original", 2, 8, 1.0),
        ("match_rms_adamw", 100, 4, 2.0),
        ("match_rms_adamw", 4, 100, 2.0),
    ],
)
def test_rate_factors(name, rows, columns, factor):
    assert learning_rate_factor(name, rows, columns) == pytest.approx(factor)


def test_matched_updates_have_the_rms_of_adamw():
    update = orthogonalize(torch.randn(1, 48, 96, generator=torch.Generator().manual_seed(4)), 5)[0].float()
    rms = (update.square().mean().sqrt() * learning_rate_factor("match_rms_adamw", 48, 96)).item()
    assert 0.15 < rms < 0.25


def test_fp16_is_refused():
    with pytest.raises(ValueError, match="fp16 matrices: train in fp32 or bf16"):
        orthogonalize(torch.zeros(1, 4, 6, dtype=torch.float16), 5)
