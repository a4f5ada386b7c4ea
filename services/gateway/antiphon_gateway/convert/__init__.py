"""Pure mapping between the domain dataclasses and protobuf messages."""
