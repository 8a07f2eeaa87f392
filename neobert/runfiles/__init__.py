"""Names and formats of the files in a run directory, shared by trainer and launcher. Imports no torch."""
