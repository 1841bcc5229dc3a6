"""The number formats (`formats`), rounding to them, and how much two values, statistics or checksums differ."""
