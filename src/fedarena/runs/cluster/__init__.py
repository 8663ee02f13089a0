"""Runs on many machines: a crew of Ray workers, each of which has built the same run from its configuration.

Who works is a matter of the pool (`pool`), who may of `admission` and `hiring`; on what, of `working`. What is sent is
in `messages`, and what a worker does with it in `worker`.
"""

from fedarena.runs.cluster.crew import RayCrew, hire_crew
from fedarena.runs.cluster.joining import staying
from fedarena.runs.cluster.workplace import Elsewhere, workplace_of

__all__ = ["Elsewhere", "RayCrew", "hire_crew", "staying", "workplace_of"]
