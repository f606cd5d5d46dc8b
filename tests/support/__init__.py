"""What the tests stand on: families of Jacobians (`families`, `strategies`) and independent answers
(`references`).

These three never import the package under test.
"""
