"""What a `paretograd.Monitor` has recorded, in words and as a page. The page needs the extra ``report``."""

from paretograd.reports.watch.page import describe, write_page

__all__ = ["describe", "write_page"]
