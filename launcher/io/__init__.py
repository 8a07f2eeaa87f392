"""Files, paths, and what the environment says: no other part of the launcher is imported here."""
