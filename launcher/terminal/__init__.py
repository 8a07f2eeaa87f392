"""Text for people: standard streams, colours, tables, numbers, line breaks."""
