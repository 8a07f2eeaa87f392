"""Probes of the training step's kernels. They run in a child process, and measure without thresholds."""
