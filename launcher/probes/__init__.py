"""Probes of this machine, one module per group of facts. Probes only measure; limits are in the rules."""
