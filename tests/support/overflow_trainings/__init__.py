"""Small trainings of one process: clean ones whose infinities and NaN have no consequence, and faulty ones."""
