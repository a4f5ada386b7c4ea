"""What the REST side costs and keeps to: measured by `make bench-gateway` and `bars-rest`."""
