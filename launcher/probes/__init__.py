"""Probes of this machine, one file per group of facts. A probe measures and knows no threshold."""
