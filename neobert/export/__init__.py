"""Export of checkpoints for other libraries, and strict loading of safetensors weights."""

from neobert.export.folder import write_hf_folder
from neobert.export.layouts import fork_to_hub, hub_to_fork
from neobert.export.weights import LoadReport, load_weights, read_weights

__all__ = ["LoadReport", "fork_to_hub", "hub_to_fork", "load_weights", "read_weights", "write_hf_folder"]
