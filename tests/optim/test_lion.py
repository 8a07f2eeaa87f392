"""Lion against its published update, in fp64."""

import torch

from neobert.optim.lion import Lion


def reference(weight, gradients, lr, betas, decay):
    """Algorithm 2 of arXiv:2302.06675, number by number."""
    momentum = torch.zeros_like(weight)
    for gradient in gradients:
        direction = torch.sign(betas[0] * momentum + (1 - betas[0]) * gradient)
        weight = weight - lr * (direction + decay * weight)
        momentum = betas[1] * momentum + (1 - betas[1]) * gradient
    return weight, momentum


def test_it_makes_the_published_update():
    generator = torch.Generator().manual_seed(3)
    start, *gradients = torch.randn(6, 5, 4, generator=generator, dtype=torch.float64)
    weight = torch.nn.Parameter(start.clone())
    optimizer = Lion([{"params": [weight], "weight_decay": 0.1}], lr=0.01, betas=(0.9, 0.99))
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    expected, momentum = reference(start, gradients, 0.01, (0.9, 0.99), 0.1)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], momentum, rtol=1e-12, atol=1e-12)
