"""The speech model process: hops of all streams, earliest playback deadline first."""
