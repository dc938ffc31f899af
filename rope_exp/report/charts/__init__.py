"""The main figures as Altair charts: forest, grid and curves. Each takes a report."""
