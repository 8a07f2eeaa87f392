"""Linting run files: finding them, and applying safe fixes."""
