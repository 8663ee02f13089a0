"""How far the present run of a deploy folder is, by what its server has written; it need not be running."""

from __future__ import annotations

from fedarena.core.words import counted
from fedarena.deploy.folder import DeployFolder
from fedarena.deploy.inbox import Inbox
from fedarena.deploy.serving import current_run
from fedarena.deploy.tasks import Journal
from fedarena.storage.checkpoint import read_state
from fedarena.storage.run_data import is_finished


def progress_of(folder: DeployFolder) -> list[str]:
    """Sentences about the present run."""
    run = current_run(folder)
    if run is None or not run.exists():
        return ["No run yet; begin one with: fedarena deploy run FILE.yaml"]
    if is_finished(run):
        return [f"The last run, {run}, is finished"]
    committed = read_state(run)
    done = 0 if committed is None else committed.round
    lines = [f"The run {run} has finished {counted(done, 'round')}"]
    joined = len(list((run / "deploy" / "devices").glob("*.json")))
    lines.append(f"{counted(joined, 'device')} joined it so far")
    course = Journal(run / "deploy" / "round.json").read()
    if course is not None and course.round > done:
        inbox = Inbox(run / "deploy" / "inbox")
        receipts = [receipt for task in course.tasks if (receipt := inbox.receipt(task.id)) is not None]
        accepted = sum(bool(receipt["accepted"]) for receipt in receipts)
        lines.append(
            f"Round {course.round}: {counted(len(course.tasks), 'device')} invited, {accepted} updates accepted, "
            f"{len(receipts) - accepted} refused"
        )
    return lines
