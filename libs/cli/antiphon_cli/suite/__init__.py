"""The whole suite as processes of one machine."""
