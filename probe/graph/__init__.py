"""One dump, or two beside each other, as trees of nodes in order of execution, and what is written of them."""
