"""The markers between which the scripts of this folder write into its pages."""

BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"


def between_marks(page: str, text: str) -> str:
    """Return the page with `text` between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
