"""Probes of the ranks: presence, collectives, equal replicas."""
