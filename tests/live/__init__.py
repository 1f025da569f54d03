"""Live sampling, layer norms, files that grow: with real files, processes and faults."""
