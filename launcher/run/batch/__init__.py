"""Batch jobs of a run, as text for Slurm, SkyPilot and Kubernetes."""
