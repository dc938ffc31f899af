"""Reading of runs and records, checks that they are comparable, and tests of their differences."""
