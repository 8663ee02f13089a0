"""Whole runs on the machines of a Ray cluster.

On a machine there, a *host* (`host`) starts a process as those that do runs on this machine (`fedarena.runs.workers`),
and passes lines of JSON between it and us (`remote`). Where the machine does not see our folders, a run's folder
travels (`carrying`). What a host imports is little: the process does the work.
"""
