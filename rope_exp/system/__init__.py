"""Files, processes, signals, the console and the machine; nothing of the project."""
