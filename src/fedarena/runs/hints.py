"""Where people stumble: what was probably meant by a setting as other tools call it, or by one without a value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest

# What things are called elsewhere, in small letters without underscores, and the setting here.
_MEANT = {
    **dict.fromkeys(("lr", "learningrate", "locallr", "clientlr", "stepsize", "eta"), "local.lr"),
    **dict.fromkeys(("epochs", "epoch", "localepochs", "numepochs", "clientepochs", "e"), "local.epochs"),
    **dict.fromkeys(("steps", "localsteps", "iterations", "localiterations", "tau"), "local.steps"),
    **dict.fromkeys(("batchsize", "bs", "batch", "localbatchsize", "clientbatchsize"), "local.batch_size"),
    **dict.fromkeys(("momentum", "localmomentum"), "local.momentum"),
    **dict.fromkeys(("weightdecay", "wd", "l2"), "local.weight_decay"),
    **dict.fromkeys(("optimizer", "optim", "opt", "localoptimizer", "clientoptimizer"), "local.optimizer"),
    **dict.fromkeys(("dataset", "data", "datasets"), "federation"),
    **dict.fromkeys(("partition", "partitioner", "split", "splits"), "federation.partition"),
    **dict.fromkeys(("alpha", "dirichletalpha", "beta"), "federation.partition.alpha"),
    **dict.fromkeys(("lrscheduler", "scheduler", "lrschedule", "lrdecay", "schedule"), "client_lr_schedule"),
    **dict.fromkeys(("numrounds", "nrounds", "commrounds", "communicationrounds", "round", "maxrounds"), "rounds"),
    **dict.fromkeys(
        ("clientsperround", "numclients", "clients", "participants", "cohortsize", "samplesize", "clientfraction"),
        "cohort",
    ),
    **dict.fromkeys(("method", "strategy", "alg", "algo", "fedalgorithm", "aggregation"), "algorithm"),
    **dict.fromkeys(("aggregate", "aggregationrule", "defense", "defence"), "aggregator"),
    **dict.fromkeys(("adversary", "malicious", "byzantine", "poison", "poisoning", "corrupted", "backdoor"), "attack"),
    **dict.fromkeys(("edge", "edgeservers", "hierarchy", "hierarchical", "clusters", "groups"), "edges"),
    **dict.fromkeys(("numbyzantine", "nummalicious", "maliciousshare", "attackratio", "poisonratio"), "attack.share"),
    **dict.fromkeys(("mu", "proxmu"), "algorithm.mu"),
    **dict.fromkeys(("serverlr", "globallr", "serverlearningrate"), "algorithm.server_lr"),
    **dict.fromkeys(("network", "net", "arch", "architecture", "modelname"), "model"),
    **dict.fromkeys(("pretrained", "checkpoint", "initialweights"), "weights"),
    **dict.fromkeys(("metric", "metrics"), "task.metrics"),
    **dict.fromkeys(("loss", "criterion", "lossfn"), "task"),
    **dict.fromkeys(("sampler", "sampling", "clientselection", "selection", "clientsampler"), "selector"),
    **dict.fromkeys(("devices", "phones", "traces"), "fleet"),
    **dict.fromkeys(("device", "gpu", "cuda"), "engine.device"),
    **dict.fromkeys(("workers", "numworkers", "cores"), "engine.workers"),
    **dict.fromkeys(("dtype", "precision"), "engine.dtype"),
    **dict.fromkeys(
        ("evalevery", "evaluateevery", "evalinterval", "evaluationfrequency", "testevery"), "evaluation.every"
    ),
    **dict.fromkeys(("randomseed", "rng", "randomstate"), "seed"),
    **dict.fromkeys(("transform", "compression", "compressor", "clip"), "transforms"),
    **dict.fromkeys(("dp", "differentialprivacy", "mechanism"), "privacy"),
    **dict.fromkeys(("epsilon", "eps", "privacybudget"), "privacy.epsilon"),
    **dict.fromkeys(("noise", "noisemultiplier", "sigma"), "privacy.noise_multiplier"),
    **dict.fromkeys(("clipnorm", "clippingnorm", "clipping"), "privacy.clip_norm"),
    **dict.fromkeys(("callback", "earlystopping", "patience"), "callbacks"),
    **dict.fromkeys(("hours", "starthour", "crashrate"), "clock"),
    **dict.fromkeys(("runname", "experimentname", "experiment"), "name"),
    **dict.fromkeys(("keepbest", "savebest"), "keep"),
}
# Within sections: what was renamed, and what is called otherwise elsewhere.
_MEANT_WITHIN = {
    "evaluation": {
        **dict.fromkeys(("split", "set", "on"), "part"),
        **dict.fromkeys(("interval", "frequency"), "every"),
    },
    "local": {key: setting.removeprefix("local.") for key, setting in _MEANT.items() if setting.startswith("local.")},
}
_RENAMED = {"evaluation.split": "evaluation.part"}


def unknown_setting(key: str, known: Collection[str], section: str | None = None) -> str:
    """The sentence about a setting that there is not, with what was probably meant."""
    full = key if section is None else f"{section}.{key}"
    if full in _RENAMED:
        return f"The setting {quoted(full)} is called {_RENAMED[full]!r} now"
    plain = _plain(key)
    meant = _MEANT.get(plain) if section is None else _MEANT_WITHIN.get(section, {}).get(plain)
    if meant is not None:
        meant = meant if section is None else f"{section}.{meant}"
        return f"There is no setting {quoted(full)}; did you mean {meant!r}?"
    if section is None and plain in ("search", "tune"):
        return f"{key}: is for a search of hyperparameters, not for a run; {SEARCHED_BY_TUNE}"
    if section is None and plain == "seeds":
        return f"There is no setting {quoted(full)} of a run; {SEVERAL_SEEDS}"
    names = known if section is None else [f"{section}.{name}" for name in known]
    return f"There is no setting {quoted(full)}; {nearest(full, names)}"


def misplaced_option(part: str, settings: Any, error: str) -> str:
    """What to add to the sentence about an option that a part does not have: where the setting is that is called so."""
    for option in settings if isinstance(settings, Mapping) else ():
        meant = _MEANT.get(_plain(str(option)))
        if meant is not None and not meant.startswith(part) and f"has no option {quoted(option)}" in error:
            return f"{'' if error.endswith('?') else '.'} Or do you mean the setting {meant!r}?"
    return ""


SEARCHED_BY_TUNE = "write: fedarena tune FILE.yaml, or in Python fedarena.tune(…)"
SEVERAL_SEEDS = (
    "several seeds make a suite: fedarena suite FILE.yaml 'seeds=[0, 1]', or in Python fedarena.suite(…, seeds=[0, 1])"
)


def several_values(settings: dict[str, Any]) -> str | None:
    """The sentence about a list of values where a run has one; None if there is no such list."""
    if isinstance(settings.get("seed"), list | tuple):
        return f"seed is one number, not {quoted(settings['seed'])}; {SEVERAL_SEEDS}"
    for key in ("rounds", "cohort"):
        if isinstance(settings.get(key), list | tuple):
            return (
                f"{key} is one number, not {quoted(settings[key])}; several values make a suite, "
                f"as a matrix with {key}: {quoted(list(settings[key]))}"
            )
    return None


def not_a_setting(arguments: Sequence[str], place: int, known: Collection[str]) -> str:
    """The sentence about a word on the command line that has no ``=``."""
    argument = arguments[place]
    if argument.startswith("-"):
        key = argument.lstrip("-").replace("-", "_")
        following = arguments[place + 1 : place + 2] or ["…"]
        if key in known or _plain(key) in _MEANT:
            return (
                f"{quoted(argument)} is not an option; settings have no dashes: {_setting(key, known)}={following[0]}"
            )
        return f"There is no option {quoted(argument)}; --help shows those that there are"
    following = arguments[place + 1].removeprefix("=") if place + 1 < len(arguments) else ""
    if argument.partition(".")[0] in known:
        value = following if following and "=" not in following else "…"
        if not following and place + 2 < len(arguments):  # key = value
            value = arguments[place + 2]
        return f"{quoted(argument)} has no value; write {argument}={value}, without spaces"
    return f"{quoted(argument)} is not a setting; write it as key=value, for example local.lr=0.1"


def _setting(key: str, known: Collection[str]) -> str:
    """The setting that a key is, or stands for."""
    return key if key in known else _MEANT[_plain(key)]


def _plain(key: str) -> str:
    return re.sub(r"[\s_-]", "", key).lower()
