"""Rounds that change with what is known, as FedScale's section 5.2 asks for.

More participants from round to round, a deadline that gets shorter, and as many local steps as a phone manages by then.

python examples/plugins/co_optimization.py
"""

from __future__ import annotations

import fedarena
from fedarena.simulate.policies import BySpeed, RoundSettings


class Tightening(BySpeed):
    """Begins with few participants and much time."""

    def round_settings(self, server, round: int) -> RoundSettings:
        return RoundSettings(cohort=min(4 + round, 12), deadline_seconds=max(60.0, 300.0 * 0.9**round))


SETTINGS = {"fleet": "fedscale", "protocol": "deadline", "policy": {"name": Tightening, "usual": 5, "most": 20}}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=5).summary["final"]["accuracy"])
