"""Probes of this machine: one file a group of facts. A probe measures and knows no threshold."""
