"""The runs of the table that README and the documentation quote, and what is made from them."""
