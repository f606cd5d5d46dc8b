"""All exceptions that the library raises deliberately.

Each message says what was given, what is allowed and what to do. The tree::

    ParetogradError
    |-- InputError (also a ValueError)
    |   |-- ShapeError               a Jacobian, Gramian or weight vector of the wrong shape
    |   |-- NonFiniteGradientError   NaN or infinity; ``.objectives`` lists the affected rows
    |   |-- NotAGramianError         not symmetric, or not positive semidefinite
    |   |-- ParameterError           a parameter outside its range (p > 1, alpha < 0, ...)
    |   |   |-- InfeasibleCapError   a cap below 1/m
    |   |   `-- HypothesisError      an s or r that violates a hypothesis of Theorem 4; ``.hypothesis`` names it
    |   |-- UnknownNameError         nothing is registered under that name
    |   `-- DataError                a data file that is missing or has unexpected content
    |-- DTypeError (also a TypeError)          not a floating-point tensor
    |-- ProcessError (also a RuntimeError)     one of several processes failed, or they do not agree
    `-- MissingExtraError (also an ImportError) an optional dependency is not installed
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ParetogradError(Exception):
    """Base class of all exceptions that this library raises deliberately."""


class InputError(ParetogradError, ValueError):
    """A value that the call cannot accept."""


class ShapeError(InputError):
    """A tensor of the wrong shape."""


class NonFiniteGradientError(InputError):
    """NaN or infinity in a gradient. ``objectives`` lists the affected rows."""

    def __init__(
        self, objectives: Sequence[int], what: str = "gradient", *, names: Sequence[str] | None = None
    ) -> None:
        self.objectives = list(objectives)
        shown = [str(k) if names is None else repr(names[k]) for k in self.objectives[:8]]
        rows = ", ".join(shown) + (", ..." if len(self.objectives) > 8 else "")
        super().__init__(
            f"the {what} of objective {rows} holds NaN or infinity; every entry must be finite. Nothing was "
            "changed. Check that objective's loss, lower the learning rate, or skip this step"
        )


class NotAGramianError(InputError):
    """A matrix that is not a Gramian: not symmetric, or not positive semidefinite."""


class ParameterError(InputError):
    """A parameter outside the range in which the method is defined."""


class InfeasibleCapError(ParameterError):
    """A cap so small that weights below it cannot sum to one."""


class HypothesisError(ParameterError):
    """An s or r that violates a hypothesis of Theorem 4. ``hypothesis`` holds its text."""

    def __init__(self, hypothesis: str, message: str) -> None:
        self.hypothesis = hypothesis
        super().__init__(message)


class UnknownNameError(InputError):
    """A name that is not in the registry."""


class DataError(InputError):
    """A data file that is missing or has unexpected content."""


class DTypeError(ParetogradError, TypeError):
    """A value that is not a floating-point tensor."""


class ProcessError(ParetogradError, RuntimeError):
    """A failure of one process, or a disagreement between several. All of them raise it."""


class MissingExtraError(ParetogradError, ImportError):
    """An optional dependency that is not installed."""


@contextmanager
def needs(package: str, what: str, extra: str) -> Iterator[None]:
    """Name the extra to install if an import inside this context fails because ``package`` is missing.

    Args:
        package: the package that is imported.
        what: subject and verb of the message, such as ``pictures need``.
        extra: the extra that installs the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{what} {package}, which is not installed; install it with: pip install 'paretograd[{extra}]'"
        ) from None
