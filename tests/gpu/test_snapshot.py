"""A snapshot on a GPU: what it holds is what was there, however soon the optimizer writes over it."""

import torch

from neobert.training.checkpoint.tensors import Snapshot


def parts(num_values=2**24):
    parameter = torch.zeros(num_values, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones_like(parameter)
    return parameter, optimizer


def test_an_update_that_follows_at_once_is_not_in_the_copy():
    parameter, optimizer = parts()
    snapshot = Snapshot(parameter.device, optimizer)
    tensors = {"weight": parameter.detach()}
    snapshot.take(tensors)
    for step in range(20):
        copies = snapshot.take(tensors)
        optimizer.step()
        snapshot.wait()
        assert bool((copies["weight"] == -float(step)).all())
    assert bool((parameter == -20.0).all())


def test_without_the_hold_the_update_would_be_seen():
    """The control: the same, with an update that no optimizer's hook holds back."""
    parameter, optimizer = parts(2**26)
    snapshot = Snapshot(parameter.device, optimizer)
    snapshot.take({"weight": parameter.detach()})
    snapshot.wait()
    torch.cuda.synchronize()
    seen = []
    for step in range(5):
        copies = snapshot.take({"weight": parameter.detach()})
        with torch.no_grad():
            parameter.sub_(1.0)
        snapshot.wait()
        seen.append(bool((copies["weight"] == -float(step)).all()))
    assert not all(seen)


def test_the_copy_is_pinned_and_nothing_waits_for_it():
    parameter, optimizer = parts(2**26)
    snapshot = Snapshot(parameter.device, optimizer)
    tensors = {"weight": parameter.detach()}
    copies = snapshot.take(tensors)
    assert copies["weight"].is_pinned()
    snapshot.wait()
    torch.cuda._sleep(2_000_000_000)  # the device is busy for the better part of a second
    copies = snapshot.take(tensors)
    assert not snapshot._copied.query()
    snapshot.wait()
    assert bool((copies["weight"] == parameter.detach().cpu()).all())
