"""What releases of msProbe before 26 offered under other names: module paths, functions, commands."""
