"""Child processes: start, redirection, signals and termination."""
