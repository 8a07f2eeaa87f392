"""Files of a run directory, a contract between trainer and launcher. Imports nothing heavy."""
