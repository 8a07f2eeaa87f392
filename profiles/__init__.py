"""Named profiles: data files with single inheritance and a content hash, and the one way to resolve a run."""
