"""Probes of numerics, hardware and ranks: they run in child processes and measure; rules apply the limits."""
