"""Rules over the rows of a monitor as msProbe has them, and files as it writes them."""
