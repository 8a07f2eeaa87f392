"""Numerics probes: document isolation, parity with fp64, rotary positions, determinism, planted faults."""
