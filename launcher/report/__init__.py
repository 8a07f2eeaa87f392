"""Reports: what was judged, in every output format."""
