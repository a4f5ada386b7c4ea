"""The Envoy edge and egress proxy: one template, rendered per deployment."""
