"""Files, paths and environment variables, without other parts of the launcher."""
