"""What is called around modules, functions, optimizers and compiled code."""
