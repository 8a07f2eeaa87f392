"""Probes of the path that training takes: they measure, they know no threshold, they run in a child process."""
