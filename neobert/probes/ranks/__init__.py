"""Probes of the ranks: attendance, collectives, equal replicas."""
