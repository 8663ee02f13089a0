"""Measuring the machine this runs on: how fast it trains, what it draws, how fast its network is.

Needs torch and numpy alone, so that it runs where little can be installed: ``python -m fedarena.profiling``.
"""

from fedarena.profiling.profile import ProfilePlan, profile_device
from fedarena.profiling.server import DEFAULT_PORT, make_server

__all__ = ["DEFAULT_PORT", "ProfilePlan", "make_server", "profile_device"]
