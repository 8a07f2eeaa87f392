"""Names that the `datasets` library takes for a file format, not for a data set.

`load_dataset("json")` reads every .json file below the current directory.
"""

# fmt: off
BUILDER_NAMES = frozenset({
    "arrow", "audiofolder", "conll", "csv", "eval", "fasta", "fastq", "genbank", "harbor", "hdf5", "iceberg",
    "imagefolder", "json", "lance", "meshfolder", "mmcif", "niftifolder", "pandas", "parquet", "pdb",
    "pdffolder", "text", "tsfile", "videofolder", "vortex", "webdataset", "xml",
})
# fmt: on
USE_PATH = "set dataset.path to the file or folder, and remove dataset.name"


def describe_builder(name: str) -> str:
    """Say what is wrong with a builder as the name of a data set."""
    return f"dataset.name {name} is a file format of the datasets library, not a data set"
