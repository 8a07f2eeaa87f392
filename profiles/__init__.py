"""Named profiles: data files with single inheritance and a content hash; resolution of a run."""
