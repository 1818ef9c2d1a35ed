"""One file for each command: its options, its help, and calls. Loaded when the command is called; no logic."""
