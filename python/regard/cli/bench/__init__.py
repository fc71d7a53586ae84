"""``python -m regard bench``: every engine that is installed, timed on one table of cases."""
