"""A run from launch to summary: supervision, restarts, time limits, worker nodes, the live view."""
