"""One file a command. Nothing here is imported before its command is called."""
