"""What the command line shows: tables, explanations and pictures. Needs the extras ``cli`` and ``plot``, except for
the table of rules as data (`rules.table`) and the page of ``paretograd explore``."""
