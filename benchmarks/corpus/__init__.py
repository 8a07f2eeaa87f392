"""Builder of an English corpus from Debian and Python packages. The text is not shipped."""
