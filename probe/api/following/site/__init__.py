"""A folder for ``PYTHONPATH``, and a package only so that it is installed; nothing imports it by this name."""
