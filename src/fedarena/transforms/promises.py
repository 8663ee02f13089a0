"""What parts promise of their methods, for shorter ways that give the same."""

from __future__ import annotations


def owner(part: object, hook: str) -> type:
    """The class whose method of this name a part has."""
    return next(kind for kind in type(part).__mro__ if hook in vars(kind))


def vouches(part: object, promise: str, *hooks: str) -> bool:
    """Whether a part keeps a promise: each class that one of these methods is of must have given it itself."""
    return all(vars(owner(part, hook)).get(promise, False) for hook in hooks)
