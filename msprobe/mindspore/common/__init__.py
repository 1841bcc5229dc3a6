"""The folder that the documented import of the callbacks goes through."""
