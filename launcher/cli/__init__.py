"""The command line: commands, arguments, options, help, errors."""
