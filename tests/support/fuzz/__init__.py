"""A fuzzer for the aggregation rules: hard inputs, exact truth, every promise checked, violations made small.

- `inputs`: what is tried. A seed makes a Jacobian of one of the families, with the rows that its exact answer is for.
- `exact`, `truth`: the answer itself, by enumeration of supports in integers.
- `sums`, `checks`: what is checked of a rule on an input, and how far each check is from its limit.
- `campaign`: many seeds on several processes, and a tally.
- `shrink`, `report`: the smallest input of each kind of violation, as text that can be pasted, and a table.

``benchmarks/fuzz.py`` (``make fuzz``) is its command line; ``tests/test_fuzz.py`` runs ten seconds of it.
"""
