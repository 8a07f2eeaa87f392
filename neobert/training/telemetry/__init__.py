"""Telemetry: heartbeat, metrics, timing, memory, traces, trackers."""
