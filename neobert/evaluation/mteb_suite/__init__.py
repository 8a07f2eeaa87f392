"""Tasks of the mteb package. Imports torch; mteb is an extra."""
