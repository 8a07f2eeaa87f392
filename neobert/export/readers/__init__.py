"""Readers, which load an exported folder with the library that users load it with, without this project."""
