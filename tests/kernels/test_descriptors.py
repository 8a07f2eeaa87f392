"""Which GPUs run the programs that copy blocks."""

from types import SimpleNamespace

import pytest
import torch

from neobert.kernels.descriptors import supports_block_copies


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)]
)
def test_only_gpus_with_room_for_a_program_copy_blocks(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert supports_block_copies(SimpleNamespace(is_cuda=True, device="cuda:0")) is expected
