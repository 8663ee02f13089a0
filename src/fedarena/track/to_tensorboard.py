"""TensorBoard: event files in the run folder, or in a folder of one's choice."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from fedarena.core.options import PathOption
from fedarena.storage.run_data import flatten_settings
from fedarena.track.tracker import TRACKERS, Ending, Step, TrackedRun, Tracker

_EVENTS, _ENDING = "events.out.tfevents", ".fedarena"  # of event files
_ID_CHARACTERS = 8  # of a run's id, in their names
_STATUS = {"finished": "STATUS_SUCCESS", "interrupted": "STATUS_UNKNOWN"}


@TRACKERS.register("tensorboard")
class TensorBoard(Tracker):
    """Writes event files for TensorBoard: to ``tensorboard`` in the run folder, or below `folder`, by run.

    Below `folder`, what another run of the same name has there is left alone: then a number is added to the name.

    The leading metric is there twice: over rounds, and as ``over_virtual_seconds/…`` over virtual time. Every time a
    run goes on it gets a new event file; what a killed process may have written beyond ``tracking.json`` is cut off.
    """

    package = "tensorboard"

    def __init__(self, *, folder: PathOption | None = None):
        self._base = folder

    def begin(self, run: TrackedRun) -> int | None:
        """Opens an event file; a new run begins with its settings."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._metric = run.metric
        own = f"{_EVENTS}.*" if self._base is None else f"{_EVENTS}.*.{run.id[:_ID_CHARACTERS]}"
        place = run.folder / "tensorboard"
        if self._base is not None:
            place = _place_of(Path(self._base) / run.group, run, own)
        place.mkdir(parents=True, exist_ok=True)
        kept = place / str(run.kept.get("file", ""))
        goes_on = kept.is_file() and kept.stat().st_size >= run.kept["bytes"]
        if goes_on:
            os.truncate(kept, run.kept["bytes"])
        else:  # a new run, or somebody has removed its files
            for left_over in place.glob(f"{own}{_ENDING}"):
                left_over.unlink()
        self._path = _free_path(place, run)
        self._file: BinaryIO = open(self._path, "xb")  # noqa: SIM115  (closed in finish)
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if not goes_on:
            self._write_settings(run)
        self._file.flush()
        return None if goes_on else -1

    def log(self, steps: Sequence[Step]) -> None:
        """Adds the numbers of every round."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for step in steps:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in step.values.items()]
            self._write(Event(wall_time=time.time(), step=step.round, summary=Summary(value=values)))
            score = step.values.get(self._metric)
            if score is not None and step.hours:
                again = Summary.Value(tag=f"over_virtual_seconds/{self._metric}", simple_value=score)
                seconds = round(3600 * step.hours)
                self._write(Event(wall_time=time.time(), step=seconds, summary=Summary(value=[again])))
        self._file.flush()

    def kept(self) -> dict[str, Any]:
        """The event file, its folder, and how long it is."""
        place = self._path.parent.name
        return {"folder": place, "file": self._path.name, "bytes": self._path.stat().st_size}

    def finish(self, ending: Ending) -> None:
        """Notes how the run ended and where its report lies; TensorBoard itself keeps no files."""
        lines = [f"**{ending.status}**", ending.message or ""]
        if ending.report is not None:
            lines.append(f"Report: `{ending.report.absolute()}`")
        self._write_text("ending", "\n\n".join(filter(None, lines)))
        from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

        status = api_pb2.Status.Value(_STATUS.get(ending.status, "STATUS_FAILURE"))
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        self._write_hyperparameters("session_end_info", plugin_data_pb2.HParamsPluginData(session_end_info=end))
        self._file.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def _write_settings(self, run: TrackedRun) -> None:
        from tensorboard.plugins.hparams import plugin_data_pb2

        table = "\n".join(f"| {key} | `{value}` |" for key, value in flatten_settings(dict(run.config)).items())
        self._write_text("settings", f"| setting | value |\n| --- | --- |\n{table}")
        start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time(), group_name=run.name)
        for key, value in run.settings.items():
            if isinstance(value, bool):
                start.hparams[key].bool_value = value
            elif isinstance(value, int | float):
                start.hparams[key].number_value = value
            elif value is not None:
                start.hparams[key].string_value = str(value)
        self._write_hyperparameters("session_start_info", plugin_data_pb2.HParamsPluginData(session_start_info=start))

    def _write_hyperparameters(self, name: str, data: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata

        about = metadata.create_summary_metadata(data)
        value = Summary.Value(tag=f"_hparams_/{name}", metadata=about, tensor=metadata.NULL_TENSOR)
        self._write(Event(wall_time=time.time(), summary=Summary(value=[value])))

    def _write_text(self, name: str, markdown: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        text = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()], tensor_shape=shape)
        value = Summary.Value(tag=f"{name}/text_summary", metadata=about, tensor=text)
        self._write(Event(wall_time=time.time(), summary=Summary(value=[value])))


def _place_of(group: Path, run: TrackedRun, own: str) -> Path:
    """The folder of a run among others: the one that it had, or one in which no other run has event files."""
    had = group / str(run.kept.get("folder", run.name))
    if run.kept.get("file") and (had / str(run.kept["file"])).is_file():
        return had
    number, place = 1, group / run.name
    while set(place.glob(f"{_EVENTS}.*{_ENDING}")) - set(place.glob(f"{own}{_ENDING}")):
        number += 1
        place = group / f"{run.name}-{number}"
    return place


def _free_path(folder: Path, run: TrackedRun) -> Path:
    """A name for a new event file, which sorts behind those that are there."""
    number = len(list(folder.glob(f"{_EVENTS}.*")))
    which = f"{int(time.time()):010d}.{socket.gethostname()}.{number:04d}.{run.id[:_ID_CHARACTERS]}"
    return folder / f"{_EVENTS}.{which}{_ENDING}"
