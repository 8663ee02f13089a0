"""What numbers a setting may have, written where the setting is declared: ``lr: Annotated[float, Limits(above=0)]``.

Settings are declared in parts of the project that need nothing but torch and numpy; pydantic, which checks them
elsewhere, finds the limits by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Numbers of rounds, clients, samples or bytes are counted in 64 bits.
MOST = 2**63 - 1


@dataclass(frozen=True)
class Limits:
    """A finite number within limits; where the type is int, only a number that is written as a whole one."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """What pydantic is to check; it asks for it under this name."""
        schema = handler(source)
        limits = {"ge": self.least, "gt": self.above, "le": self.most, "lt": self.below}
        if schema["type"] == "int":
            limits["le"] = MOST if self.most is None else self.most
            schema = {**schema, "strict": True}
        else:
            schema = {**schema, "allow_inf_nan": False}
        return {**schema, **{key: limit for key, limit in limits.items() if limit is not None}}
