"""Independent tasks in this process, in others, or on a dask cluster."""
