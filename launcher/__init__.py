"""The command line `neobert-launch`: commands, probes of the machine, child processes, what people read."""
