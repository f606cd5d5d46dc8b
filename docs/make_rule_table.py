"""Update the generated part of docs/table-of-rules.md: `python docs/make_rule_table.py`."""

from pathlib import Path

from marks import between_marks

from paretograd.reports.rules.page import to_markdown

PAGE = Path(__file__).parent / "table-of-rules.md"

if __name__ == "__main__":
    PAGE.write_text(between_marks(PAGE.read_text(encoding="utf-8"), to_markdown()), encoding="utf-8")
