"""Files of the monitor as msProbe writes them."""
