"""Batches: checked input, lines run by the live routes at batch priority, output in input order."""
