"""The subcommands of ``msprobe``: one thin file each over one base, in rooms by what they are for."""
