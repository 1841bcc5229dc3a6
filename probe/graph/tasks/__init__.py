"""What is made for a page, a task at a time: which dumps belong to it, and how they become rows."""
