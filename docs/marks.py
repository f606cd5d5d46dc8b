"""Where the scripts of this folder write into its pages: between two marks."""

BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"


def between_marks(page: str, text: str) -> str:
    """The text of a page, with another one between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
