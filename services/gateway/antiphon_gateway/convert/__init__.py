"""Pure mapping between the domain values and protobuf messages."""
