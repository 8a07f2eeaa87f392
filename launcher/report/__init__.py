"""Reports in every output format."""
