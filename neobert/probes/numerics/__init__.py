"""Probes of the numerics: isolation, parity, rotary positions, determinism, and planted faults."""
