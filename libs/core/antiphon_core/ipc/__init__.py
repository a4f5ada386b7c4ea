"""Worker processes: supervision and the typed messages between front and worker."""
