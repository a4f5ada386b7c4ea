"""Which messages of a too long conversation may go, and how many must."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from antiphon_gateway.domain.generation import Message, Role

_KEPT = (Role.SYSTEM, Role.DEVELOPER)


def removable(messages: Sequence[Message]) -> list[list[int]]:
    """Groups of message indices in the order in which they may go, the oldest first.

    Whole former turns go first, so that what is left still begins with a user; then, inside the
    last turn, answers together with the results of their calls. System messages, the last user
    message and the last group after it stay.
    """
    users = [index for index, message in enumerate(messages) if message.role is Role.USER]
    last_user = users[-1] if users else -1
    turns: list[list[int]] = []
    steps: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.role in _KEPT or index == last_user:
            continue
        if index < last_user:
            if message.role is Role.USER or not turns:
                turns.append([])
            turns[-1].append(index)
        else:
            if message.role is not Role.TOOL or not steps:
                steps.append([])
            steps[-1].append(index)
    return turns + steps[:-1]


def without(messages: Sequence[Message], groups: Sequence[Sequence[int]]) -> tuple[Message, ...]:
    """The messages that are in none of the groups."""
    gone = {index for group in groups for index in group}
    return tuple(message for index, message in enumerate(messages) if index not in gone)


async def shortened(
    messages: Sequence[Message],
    fits: Callable[[tuple[Message, ...]], Awaitable[bool]],
) -> tuple[Message, ...]:
    """The conversation without its oldest groups, as few of them as makes it fit.

    Args:
        messages: which do not fit as they are.
        fits: says whether a conversation does; asked about log2(groups) times.

    Returns:
        What fits; where nothing does, the least that can be left.
    """
    groups = removable(messages)
    low, high = min(1, len(groups)), len(groups)
    while low < high:
        middle = (low + high) // 2
        if await fits(without(messages, groups[:middle])):
            high = middle
        else:
            low = middle + 1
    return without(messages, groups[:low])
