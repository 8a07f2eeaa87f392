"""Telemetry: heartbeat, metrics files, step timing, memory use, profiler traces."""
