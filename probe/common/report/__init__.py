"""Tables: CSV, workbooks, pages, and values as JSON has them."""
