"""Tasks: a row of `table` and a package each, with `section` and `spec` (no torch), `examples` and `task`."""
