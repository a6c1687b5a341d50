"""One module per kind of data; `trainables.data.spec` imports all of them."""
