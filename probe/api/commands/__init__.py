"""The subcommands of ``msprobe``: one thin file each over one base, most in a file of their name."""
