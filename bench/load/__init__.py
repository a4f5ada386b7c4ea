"""Load generator for language-model servers: ours over gRPC, peers over OpenAI's SSE.

One seeded workload (lengths, shared prefixes, cancels, deadlines, tenants) is offered to a target
at Poisson times or by a fixed number of clients, and every request is timed at the client. See
``python -m bench.load --help``.
"""
