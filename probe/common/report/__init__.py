"""Tables, terminals and progress bars."""
