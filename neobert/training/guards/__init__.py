"""Guards: what ends a run, or warns, while it trains."""
