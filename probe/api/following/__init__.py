"""``msprobe run --follow-children``: collecting from Pythons that the program starts as commands of their own."""
