"""One module per kind of data; `trainables.data` imports all of them."""
