"""The tasks of the benchmark. A new task is one file in this folder and one row here."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from typing import Any

from paretograd.bench.roster import imported
from paretograd.bench.task import Task
from paretograd.bench.tasks.adult import AdultFairness
from paretograd.bench.tasks.census import CensusIncome
from paretograd.bench.tasks.cifar10 import CIFAR10
from paretograd.bench.tasks.control import DeepSeaTreasure, FruitTree
from paretograd.bench.tasks.multi_mnist import MultiFashionMNIST, MultiMNIST
from paretograd.bench.tasks.physics import Beltrami, Burgers, Kovasznay, Schroedinger
from paretograd.bench.tasks.yeast import Yeast
from paretograd.errors import InputError, UnknownNameError

#: The tasks, by name.
TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        MultiMNIST,
        MultiFashionMNIST,
        CensusIncome,
        Yeast,
        CIFAR10,
        AdultFairness,
        Burgers,
        Schroedinger,
        Kovasznay,
        Beltrami,
        DeepSeaTreasure,
        FruitTree,
    )
}


def task_of(name: str, small: bool = False) -> Task:
    """Return a task.

    Args:
        name: one of `TASKS`, ``module:Class``, or a Python file that defines one task.
        small: take the variant for two CPU cores.
    """
    if name in TASKS:
        return TASKS[name](small=small)
    if name.endswith(".py"):
        found = _only_task(Path(name))
    elif ":" in name:
        found = imported(name, "task")
    else:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(
            f"no task is called {name!r}.{hint} Known names: {', '.join(TASKS)}; or module:Class, or a Python file"
        )
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise InputError(f"{name} is no subclass of paretograd.bench.Task")
    return found(small=small)


def _only_task(path: Path) -> Any:
    """Return the only task that a Python file defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        raise InputError(f"{path} cannot be imported: {error!r}") from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Task) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise InputError(f"{path} defines {len(found)} tasks; it must define one subclass of paretograd.bench.Task")
    return found[0]
