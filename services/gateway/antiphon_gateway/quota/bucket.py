"""A token bucket, and its share of one that several replicas draw from."""

from __future__ import annotations


class Bucket:
    """What may still be used of a rate.

    The level falls below zero when more was used than was reserved; then it must refill first.

    Args:
        rate: units a second.
        capacity: the most that is saved up.
        now: seconds of a monotonic clock.
    """

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self.level = capacity
        self.taken = 0.0
        """Since the last exchange with the shared bucket."""
        self.empty_until = 0.0
        """Until when the shared bucket is known to have no more."""
        self._filled_at = now

    def refill(self, now: float) -> None:
        """Adds what the time since the last refill brought."""
        elapsed = max(0.0, now - self._filled_at)
        self.level = min(self.capacity, self.level + elapsed * self.rate)
        self._filled_at = now

    def hold(self, now: float) -> None:
        """Lets time pass without adding: the shared bucket fills, not this share of it."""
        self._filled_at = now

    def take(self, amount: float) -> None:
        """Uses an amount; negative gives back."""
        self.level = min(self.capacity, self.level - amount)
        self.taken += amount

    def wait_for(self, amount: float) -> float:
        """Seconds until the amount is there, if nobody else takes."""
        return max(0.0, (amount - self.level) / self.rate)
