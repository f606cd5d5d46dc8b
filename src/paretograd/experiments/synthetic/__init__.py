"""Studies on test problems: rules compared by whole descents from the same starts."""
