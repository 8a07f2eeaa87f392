"""Files of a run directory, the contract between trainer and launcher. Imports no torch."""
