"""Files of arrays: their headers, compared with the file before anything is made of them."""
