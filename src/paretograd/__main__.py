"""Run the ``paretograd`` command as ``python -m paretograd``."""

from paretograd.cli import main

if __name__ == "__main__":
    main()
