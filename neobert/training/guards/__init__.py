"""Guards: checks during training that warn or end the run."""
