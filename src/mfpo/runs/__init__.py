"""A run is a directory of plain files: its settings, metrics, checkpoints, policy and summary."""
