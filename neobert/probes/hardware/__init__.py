"""Probes of the devices: correctness, throughput, throttling, imports."""
