"""Probes across ranks: rendezvous, collectives, equal replicas."""
