"""Text output: standard streams, colors, tables, numbers, line breaks."""
