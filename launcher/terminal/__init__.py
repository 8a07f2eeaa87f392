"""Text for people: standard streams, colors, tables, numbers, line breaks."""
