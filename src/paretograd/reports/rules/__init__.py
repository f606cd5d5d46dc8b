"""The table of rules and properties, as data: every "yes" is a claim of a guarantee, every "no" a counter-example."""
