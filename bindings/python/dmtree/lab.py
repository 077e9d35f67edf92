"""The benchmark and the simulator as functions."""

import json

from . import _dmtree


def experiments():
    """The experiments: a dictionary from names to what they are for."""
    return dict(_dmtree.list_experiments())


def _settings(fields):
    words = []
    for name, value in fields.items():
        if value is None or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words.append(f"{flag}={','.join(str(part) for part in value)}")
        else:
            words.append(f"{flag}={value}")
    return words


def results(experiment, **settings):
    """Runs an experiment; what `dmtree bench EXPERIMENT` writes to results.json, as a dictionary.

    Settings are those of the command line: `results("quick", systems=["dmtree"], keys=100_000)`.
    """
    return json.loads(_dmtree.run_experiment(experiment, _settings(settings)))


def bench(experiment="quick", **settings):
    """Runs an experiment; a frame of pandas with a row for each cell of results.json.

    Fields that are records have a column for each of their fields, `sim.read_ns` for example.
    """
    import pandas

    return pandas.json_normalize(results(experiment, **settings)["cells"])


def simulate(system="dmtree", workload="search", **settings):
    """Runs systems on simulated hardware in virtual time; a frame as of `bench`.

    `system` and `workload` are names or lists of names. The experiment is `quick-sim`: another
    machine is `profile="cx7-400g"`.
    """
    several = lambda names: names if isinstance(names, (list, tuple)) else [names]
    return bench("quick-sim", systems=several(system), workloads=several(workload), **settings)
