"""Probes of the path that training takes: they measure, know no threshold, and run in a child process."""
