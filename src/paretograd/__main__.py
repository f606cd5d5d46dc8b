"""``python -m paretograd`` is the ``paretograd`` command."""

from paretograd.cli import main

if __name__ == "__main__":
    main()
