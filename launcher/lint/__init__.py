"""Linting of run files: discovery and safe fixes."""
