"""Probes of the devices: known answers, rates, slowdowns, imports."""
