"""Search for the texts of an index that are closest to a query."""
