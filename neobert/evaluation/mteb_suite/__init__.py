"""Tasks of the mteb package. Heavy: it imports torch; mteb is an extra."""
