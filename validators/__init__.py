"""Rules: pure functions from a resolved run, its plan and recorded facts to findings."""
