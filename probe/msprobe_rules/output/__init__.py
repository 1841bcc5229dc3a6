"""The tables of the pre-check as files: what msProbe writes, in its headings or in English ones."""
