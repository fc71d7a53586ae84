"""A transformer over characters, and how it is trained."""
