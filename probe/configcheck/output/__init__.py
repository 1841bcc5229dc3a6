"""The answer of a comparison of configurations: text, JSON, a page, a workbook."""
