"""A run from launch to summary: sessions, restarts, time limits, worker nodes, the live view."""
