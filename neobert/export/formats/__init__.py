"""Writers of the export formats, one module each; `neobert/export_formats.py` lists them."""
