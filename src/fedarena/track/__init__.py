"""Trackers: where the numbers of a run are shown as well, while it goes on and after it."""

from fedarena.track.export import export_run
from fedarena.track.live import Tracking, check_trackers
from fedarena.track.to_mlflow import MLflow
from fedarena.track.to_tensorboard import TensorBoard
from fedarena.track.to_wandb import WandB
from fedarena.track.tracker import TRACKERS, Ending, Step, TrackedRun, Tracker

__all__ = [
    "TRACKERS",
    "Ending",
    "MLflow",
    "Step",
    "TensorBoard",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "WandB",
    "check_trackers",
    "export_run",
]
