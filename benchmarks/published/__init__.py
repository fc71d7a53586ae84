"""The runs of the table that README and the documentation quote, and the tables made from them."""
