"""Figures for papers: 6.75 inches wide, 8-point text, PDF and PNG, readable in grey."""
