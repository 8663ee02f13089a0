"""A whole search: begin or go on, work, and what it came to."""

from __future__ import annotations

import time

from fedarena.hpo.tune.hosted import work_on_cluster
from fedarena.hpo.tune.jobs import work_in_processes
from fedarena.hpo.tune.library import quiet_optuna
from fedarena.hpo.tune.observer import TuneObserver
from fedarena.hpo.tune.outcome import TunedStudy
from fedarena.hpo.tune.plan import TuningPlan
from fedarena.hpo.tune.storage import begin_study, open_study
from fedarena.hpo.tune.working import Worker, incumbent


def search(plan: TuningPlan, observer: TuneObserver, cluster: str | None = None) -> TunedStudy:
    """Does all trials that are left of a study: in this process, in several, or on a cluster; results are on disk."""
    plan = begin_study(plan)
    options = plan.options
    seconds = None if options.hours is None else 3600 * options.hours
    with quiet_optuna():
        study = open_study(plan)
        done = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
        observer.resumed(done, incumbent(plan, study))
        try:
            if cluster is not None:
                work_on_cluster(plan, cluster, observer, seconds)
            elif options.jobs == 1:
                Worker(plan, observer, None if seconds is None else time.monotonic() + seconds).work()
            else:
                work_in_processes(plan, options.jobs, observer, seconds)
        except KeyboardInterrupt:
            observer.stopped()
            raise
        return TunedStudy(plan, open_study(plan))
