"""The codec process: hops of all streams in batches, over slots of device state."""
