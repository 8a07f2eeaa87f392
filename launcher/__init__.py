"""Command line `neobert-launch`: commands, machine probes, child processes, reports."""
