"""HTML report of a run: files read in bounded memory, decimated, written as one self-contained page."""
