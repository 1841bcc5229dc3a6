"""The answer as text, JSON, workbook and page."""
