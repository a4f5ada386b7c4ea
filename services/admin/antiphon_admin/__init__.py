"""Administration of the suite: aggregated health, snapshots and metrics."""
