"""The referee: a benchmark of all rules on real tasks, with tuned baselines."""

from paretograd.bench.task import Batch, Data, Metric, Source, Task

__all__ = ["Batch", "Data", "Metric", "Source", "Task"]
