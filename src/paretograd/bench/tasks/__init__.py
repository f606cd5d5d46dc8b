"""The tasks of the benchmark."""
