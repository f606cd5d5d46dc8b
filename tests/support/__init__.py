"""What the tests share: families of Jacobians, independent references, models and data.

`families`, `strategies` and `references` never import the package under test.
"""

from pathlib import Path

#: Root folder of the repository.
ROOT = Path(__file__).parents[2]
