"""Drafting tokens ahead of the model, and what decides when, how deep and which are kept."""
