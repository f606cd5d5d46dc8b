"""Fair classification: the UCI Adult data, and objectives and metrics for any binary classifier and attribute."""

from paretograd.problems.fairness.adult import Adult, Rows, load_adult
from paretograd.problems.fairness.objectives import FairnessMetrics, fairness_losses, fairness_metrics
from paretograd.problems.networks import classifier

__all__ = ["Adult", "FairnessMetrics", "Rows", "classifier", "fairness_losses", "fairness_metrics", "load_adult"]
