"""The command line, one file a command; `main.py` finds the command and turns errors into one line and an exit code."""
