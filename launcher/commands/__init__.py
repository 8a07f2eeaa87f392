"""Commands, one file each, imported when the command is called."""
