"""The draw rule: logits and a request's settings to one token, the same in any batch."""
