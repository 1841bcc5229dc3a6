"""The configuration of two runs, collected into packs and compared before the first step."""
