"""Guards: checks during training that log a warning or end the run."""
