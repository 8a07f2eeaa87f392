"""Child processes: starting, redirecting, signalling and ending them."""
