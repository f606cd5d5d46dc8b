"""An app whose clients upload what no client should."""
