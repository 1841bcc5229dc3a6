"""The rules that judge two graphs: the questions of a page to them, and ours."""
