"""Speech recognition and turn detection: a gRPC front and one worker process."""
