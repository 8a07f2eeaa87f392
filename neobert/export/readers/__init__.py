"""Programs that read an exported folder with the library of its users, in a process without this project."""
