"""gRPC plumbing: request context, server, channel, streams, error mapping."""
