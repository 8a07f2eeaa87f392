"""A MiB is 2**20 bytes and a GiB is 1024 of them, and what is not there is not zero."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.training.telemetry.memory import gpu_fields, memory_fields

MIB = 2**20


def test_the_figures_of_the_incident():
    fields = gpu_fields(21_504 * MIB, 67_584 * MIB, 81_920 * MIB)
    assert (fields["gpu_mem_alloc_mib"], fields["gpu_mem_alloc_gib"]) == (21_504, 21.0)
    assert (fields["gpu_mem_reserved_mib"], fields["gpu_mem_reserved_gib"]) == (67_584, 66.0)
    assert fields["gpu_mem_total_mib"] == 81_920


def test_a_part_of_a_mib_is_not_counted():
    assert gpu_fields(MIB - 1, MIB, 2 * MIB - 1)["gpu_mem_alloc_mib"] == 0
    assert gpu_fields(MIB - 1, MIB, 2 * MIB - 1)["gpu_mem_total_mib"] == 1


@given(st.integers(0, 2**48))
def test_gib_is_mib_through_1024(num_bytes):
    fields = gpu_fields(num_bytes, num_bytes, num_bytes)
    assert fields["gpu_mem_alloc_gib"] == pytest.approx(fields["gpu_mem_alloc_mib"] / 1024, abs=0)
    assert isinstance(fields["gpu_mem_alloc_mib"], int)


def test_a_cpu_has_no_gpu_memory_and_some_of_its_own():
    fields = memory_fields(torch.device("cpu"))
    assert fields.pop("host_rss_mib") > 50
    assert set(fields.values()) == {None}
