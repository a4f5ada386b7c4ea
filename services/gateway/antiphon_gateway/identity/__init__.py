"""Who asks and what they may do: API keys, tokens of an issuer, a verifier of one's own."""
